// Rounds tensors to few values: groups of elements, each with its own step.
import { DsError } from '../errors.js';
import { abs, cast, mean, round, scope, sign, sum, type Tensor, where } from '../tensor/index.js';

/** How values are rounded. */
export interface Rounding {
  /** Bits of a value: 3 or more give 2^bits values, 2 gives three values, 1 gives two. */
  readonly bits: number;
  /**
   * Range around 0, or between the smallest and the largest value. Two and three values are around
   * 0.
   */
  readonly type: 'symmetric' | 'asymmetric';
  /** Number of equal parts of the tensor, in the order of its elements. */
  readonly groups: number;
  /** Returns random numbers in [-0.5, 0.5) that are added before rounding; null: no noise. */
  readonly noise: ((like: Tensor) => Tensor) | null;
}

type RoundingRule = (rows: Tensor, rounding: Rounding) => Tensor;

/** Returns `value`, or 1 if it is 0, the range of a group of equal values. */
const replaceZero = (value: Tensor): Tensor => where(value.eq(0), 1, value);

const roundCodes = (codes: Tensor, { noise }: Rounding): Tensor =>
  round(noise ? codes.add(noise(codes)) : codes);

/**
 * Rounds to codes from -2^(bits - 1) to 2^(bits - 1) - 1; the step is 2 max|x| / 2^bits. A positive
 * maximum exceeds the largest code, as in DeepSpeed.
 */
const roundSymmetric: RoundingRule = (rows, rounding) => {
  const levels = 2 ** rounding.bits;
  const step = abs(rows)
    .max({ dims: 1, keepDim: true })
    .mul(2 / levels);
  const codes = roundCodes(rows.div(replaceZero(step)), rounding);
  return codes.clamp(-levels / 2, levels / 2 - 1).mul(step);
};

/**
 * Rounds to codes from 0 to 2^bits - 1; the step is (max - min) / 2^bits, and code 0 is the
 * multiple of it nearest to min.
 */
const roundAsymmetric: RoundingRule = (rows, rounding) => {
  const levels = 2 ** rounding.bits;
  const min = rows.min({ dims: 1, keepDim: true });
  const step = rows.max({ dims: 1, keepDim: true }).sub(min).div(levels);
  const divisor = replaceZero(step);
  const zero = round(min.div(divisor)).mul(step);
  const codes = roundCodes(rows.sub(zero).div(divisor), rounding).clamp(0, levels - 1);
  return where(step.eq(0), rows, codes.mul(step).add(zero));
};

/**
 * Rounds magnitudes up to 0.7 mean|x| to 0, and others to their mean magnitude with the sign of x.
 * Source: Li et al. 2016.
 */
const roundTernary: RoundingRule = (rows) => {
  const sizes = abs(rows);
  const threshold = mean(sizes, { dims: 1, keepDim: true }).mul(0.7);
  const beyond = cast(sizes.gt(threshold), 'f32');
  const count = sum(beyond, { dims: 1, keepDim: true });
  const size = sum(sizes.mul(beyond), { dims: 1, keepDim: true }).div(replaceZero(count));
  return sign(rows).mul(beyond).mul(size);
};

/** Rounds to the mean magnitude with the sign of x. Source: Rastegari et al. 2016. */
const roundBinary: RoundingRule = (rows) =>
  sign(rows).mul(mean(abs(rows), { dims: 1, keepDim: true }));

function chooseRule({ bits, type }: Rounding): RoundingRule {
  if (bits === 1) return roundBinary;
  if (bits === 2) return roundTernary;
  return type === 'symmetric' ? roundSymmetric : roundAsymmetric;
}

/**
 * Returns `x` rounded, in its shape and dtype; steps and codes are computed in f32. A group of
 * zeros stays zero. Throws DS_SHAPE if groups are not equal. Source: DeepSpeed's SymQuantizer,
 * AsymQuantizer, TernaryQuantizer and BinaryQuantizer.
 */
export function quantizeValues(x: Tensor, rounding: Rounding): Tensor {
  const { groups } = rounding;
  requireGroups('quantized', x, groups);
  return scope(() => {
    const rows = cast(x, 'f32').reshape(groups, x.numel / groups);
    return cast(chooseRule(rounding)(rows, rounding).reshape(...x.shape), x.dtype);
  });
}

/** Throws DS_SHAPE unless `x` divides into `groups` equal parts. */
export function requireGroups(op: string, { numel, shape }: Tensor, groups: number): void {
  if (numel % groups === 0) return;
  const expected = `quantize_groups that divide ${numel} elements [${shape.join(', ')}]`;
  throw new DsError({ code: 'DS_SHAPE', op, expected, got: String(groups) });
}
