// The rotation of heads that rope() and the joint projections of a layer share.

import { DsError } from '../../errors.js';
import * as kernels from '../../runtime/kernels.generated.js';
import { describe, type View } from '../../runtime/view.js';
import type { Tensor } from '../tensor.js';
import { cast } from './creation.js';
import { requireSameDevice, shapeError, toRowMajor, viewOf } from './shapes.js';

/**
 * Returns positions as contiguous [B, T] i32. Throws DS_SHAPE, DS_DTYPE or DS_DEVICE unless they
 * are [B, T] i32 or i64 on x's device.
 */
export function ropePositions(positions: Tensor, x: Tensor): Tensor {
  const op = 'rope positions';
  requireSameDevice(op, positions, x);
  if (positions.dtype !== 'i32' && positions.dtype !== 'i64') {
    const expected = 'rows of the table of dtype i32 or i64';
    throw new DsError({ code: 'DS_DTYPE', op, expected, got: describe(positions) });
  }
  const [B, T] = x.shape;
  if (positions.ndim !== 2 || positions.size(0) !== B || positions.size(1) !== T)
    throw shapeError(op, `[${B}, ${T}]`, describe(positions));
  return toRowMajor(cast(positions, 'i32'));
}

/** Angles and positions of a rotation. */
export interface Rotation {
  /** Cosines by row of the table. */
  cos: Tensor;
  /** Sines by row of the table. */
  sin: Tensor;
  /** The row of each token, or null: row t for token t. */
  positions: Tensor | null;
  /** Whether to rotate backwards. */
  inverse: boolean;
}

/** Returns `count` channels of each head from `start` on, as a view. */
function channelsOf(x: View, start: number, count: number): View {
  const shape = x.shape.slice();
  shape[shape.length - 1] = count;
  return viewOf(x, shape, x.strides, x.offset + start);
}

/**
 * Rotates the first channels of heads [B, T, H, D] into `out`, and copies the channels without an
 * angle.
 */
export function rotateHeads(heads: View, out: View, rotation: Rotation): void {
  const { cos, sin, positions, inverse } = rotation;
  const [width, rotated] = [heads.shape.at(-1) ?? 0, 2 * (cos.shape.at(-1) ?? 0)];
  if (rotated === 0 || rotated >= width) {
    kernels.rope({ in: heads, cos, sin, out, positions, inverse });
    return;
  }
  const [from, to] = [channelsOf(heads, 0, rotated), channelsOf(out, 0, rotated)];
  kernels.rope({ in: from, cos, sin, out: to, positions, inverse });
  const unrotated = width - rotated;
  kernels.copy({
    in: channelsOf(heads, rotated, unrotated),
    out: channelsOf(out, rotated, unrotated),
  });
}
