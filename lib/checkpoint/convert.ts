// Converts values to another dtype and layout for exports.
import { DsError } from '../errors.js';
import type { DType } from '../runtime/dtype.js';
import { cast, contiguous, noGrad, scope, type Tensor, transpose } from '../tensor/index.js';

/**
 * Returns `values` in `dtype`; transposed from [m, n] to [n, m] if `transposed`. Takes ownership of
 * `values`. Throws DS_CHECKPOINT if `transposed` and `values` is not a matrix. Throws DS_NONFINITE
 * if `dtype` is f16 and a result is not finite.
 */
export function convertValues(
  name: string,
  values: Tensor,
  { dtype, transposed }: { dtype: DType; transposed: boolean },
): Tensor {
  try {
    if (transposed && values.ndim !== 2) throw noMatrixError(name, values);
    const out = noGrad(() =>
      scope(() => {
        const rounded = cast(values, dtype);
        return transposed ? contiguous(transpose(rounded, 0, 1)) : rounded;
      }),
    );
    if (dtype === 'f16') requireFinite(name, out);
    if (out === values) values.retain();
    return out;
  } finally {
    values.release();
  }
}

/** Throws DS_NONFINITE if a value is infinite or NaN: f16 overflows above 65504. */
function requireFinite(name: string, values: Tensor): void {
  const bits = values.toRaw() as Uint16Array;
  if (bits.every((half) => (half & 0x7c00) !== 0x7c00)) return;
  throw new DsError({
    code: 'DS_NONFINITE',
    op: name,
    expected: 'finite values in fp16',
    got: 'infinity or NaN',
    hint: 'Use bf16 or fp32 instead.',
  });
}

function noMatrixError(op: string, { shape }: Tensor): DsError {
  return new DsError({
    code: 'DS_CHECKPOINT',
    op,
    expected: 'a matrix to transpose',
    got: `[${shape.join(', ')}]`,
  });
}
