// Values on their way between libraries: another precision, another layout.
import { DsError } from '../errors.js';
import type { DType } from '../runtime/dtype.js';
import { cast, contiguous, noGrad, scope, type Tensor, transpose } from '../tensor/index.js';

/**
 * `values` in `dtype`, a matrix [m, n] as [n, m] where `transposed`; takes `values` over. Throws
 * DS_CHECKPOINT when it should be transposed and is no matrix, DS_NONFINITE when it does not fit
 * f16.
 */
export function converted(
  name: string,
  values: Tensor,
  { dtype, transposed }: { dtype: DType; transposed: boolean },
): Tensor {
  try {
    if (transposed && values.ndim !== 2) throw noMatrix(name, values);
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

/** f16 ends at 65504: weights beyond it would become infinite. */
function requireFinite(name: string, values: Tensor): void {
  const bits = values.toRaw() as Uint16Array;
  if (bits.every((half) => (half & 0x7c00) !== 0x7c00)) return;
  throw new DsError({
    code: 'DS_NONFINITE',
    op: name,
    expected: 'finite values in fp16',
    got: 'some that are not',
    hint: 'Use bf16 or fp32 instead.',
  });
}

function noMatrix(op: string, { shape }: Tensor): DsError {
  return new DsError({
    code: 'DS_CHECKPOINT',
    op,
    expected: 'a matrix, to be transposed',
    got: `[${shape.join(', ')}]`,
  });
}
