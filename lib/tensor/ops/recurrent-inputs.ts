// Inputs that recurrences over tokens share: documents, and one number for each token and head.

import { DsError } from '../../errors.js';
import { statisticOf } from '../../runtime/dtype.js';
import { describe } from '../../runtime/view.js';
import type { Tensor } from '../tensor.js';
import { cast } from './creation.js';
import { requireSameDevice, shapeError, toRowMajor } from './shapes.js';

/**
 * @internal Returns documents as contiguous [B, T] i32. Throws DS_SHAPE, DS_DTYPE or DS_DEVICE
 * unless they are [B, T] i32 or i64 on x's device.
 */
export function documentsOf(op: string, documents: Tensor | null, x: Tensor): Tensor | null {
  if (!documents) return null;
  requireSameDevice(`${op} documents`, documents, x);
  if (documents.dtype !== 'i32' && documents.dtype !== 'i64') {
    const expected = 'numbers of documents of dtype i32 or i64';
    throw new DsError({
      code: 'DS_DTYPE',
      op: `${op} documents`,
      expected,
      got: describe(documents),
    });
  }
  const [B, T] = x.shape;
  if (documents.ndim === 2 && documents.size(0) === B && documents.size(1) === T) {
    return toRowMajor(cast(documents, 'i32'));
  }
  throw shapeError(`${op} documents`, `[${B}, ${T}]`, describe(documents));
}

/**
 * @internal Throws DS_SHAPE, DS_DTYPE or DS_DEVICE unless each of `tensors` has a number for each
 * token and head of values [B, T, H, E], in f32 (f64 for f64).
 */
export function requireHeadNumbers(
  op: string,
  names: string,
  tensors: readonly Tensor[],
  values: Tensor,
): void {
  for (const tensor of tensors) {
    requireSameDevice(op, tensor, values);
    if (tensor.ndim === 3 && tensor.shape.every((n, d) => n === values.shape[d])) continue;
    throw shapeError(op, `${names} [${values.shape.slice(0, 3).join(', ')}]`, describe(tensor));
  }
  const statistic = statisticOf(values.dtype);
  for (const tensor of tensors) {
    if (tensor.dtype === statistic) continue;
    const expected = `${names} of dtype ${statistic}`;
    throw new DsError({ code: 'DS_DTYPE', op, expected, got: describe(tensor) });
  }
}
