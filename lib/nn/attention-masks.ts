// The masks of PyTorch's attention modules: for the fused kernel, and for attention from products
// and a softmax, which also returns the weights.

import { DsError } from '../errors.js';
import { type DType, isFloating } from '../runtime/dtype.js';
import { leading } from '../runtime/required.js';
import { describe } from '../runtime/view.js';
import {
  arange,
  dropout,
  gt,
  isGradEnabled,
  type KeyFilter,
  matmul,
  sharedTokens,
  softmax,
  type Tensor,
  where,
} from '../tensor/index.js';

/** Masks that hide keys from queries, as in PyTorch's attention modules. */
export interface AttentionMasks {
  /**
   * True hides, as do minus infinity and numbers below -1e30; other numbers are added to the
   * scores: [T, S], [B H, T, S] or [B, 1 or H, T, S].
   */
  attnMask?: Tensor | null;
  /**
   * True hides a key from all queries; numbers are added: [B, S], or [S] for inputs without a
   * batch.
   */
  keyPaddingMask?: Tensor | null;
  /** Query t sees keys s <= t + (S - T), without an attnMask. Default: false. */
  isCausal?: boolean;
}

/** Batch, heads, queries and keys. */
type ScoreShape = readonly [number, number, number, number];

/**
 * The score of a hidden key. It is finite and far below every other score, so that a query without
 * visible keys still has a softmax. Lower numbers in a mask hide too, as in the kernel.
 */
const LOWEST: Partial<Record<DType, number>> = { f16: -65504 };
const lowestOf = (dtype: DType): number => LOWEST[dtype] ?? -1e30;

function maskShapeError(op: string, name: string, expected: string, mask: Tensor): DsError {
  return new DsError({ code: 'DS_SHAPE', op: `${op} ${name}`, expected, got: describe(mask) });
}

/** Returns attnMask as [B or 1, H or 1, T, S]. */
function attentionMask(op: string, mask: Tensor, [B, H, T, S]: ScoreShape): Tensor {
  const { shape } = mask;
  const fits = shape.at(-1) === S && shape.at(-2) === T;
  if (fits && mask.ndim === 2) return mask.reshape([1, 1, T, S]);
  if (fits && mask.ndim === 3 && shape[0] === B * H) return mask.reshape([B, H, T, S]);
  const [batch = 0, heads = 0] = shape;
  const repeats = (batch === 1 || batch === B) && (heads === 1 || heads === H);
  if (fits && mask.ndim === 4 && repeats) return mask;
  const expected = `[${T}, ${S}], [${B * H}, ${T}, ${S}] or [${B}, ${H}, ${T}, ${S}]`;
  throw maskShapeError(op, 'attnMask', expected, mask);
}

/** Returns keyPaddingMask as [B, 1, 1, S]. */
function paddingMask(op: string, mask: Tensor, [B, , , S]: ScoreShape): Tensor {
  const isWhole = mask.shape.join() === `${B},${S}` || (B === 1 && mask.shape.join() === `${S}`);
  if (isWhole) return mask.reshape([B, 1, 1, S]);
  throw maskShapeError(op, 'keyPaddingMask', `[${B}, ${S}]`, mask);
}

/** Hidden keys (bool) and addends of scores; each null if absent. */
interface SplitMask {
  hidden: Tensor | null;
  added: Tensor | null;
}

/** Throws DS_DTYPE unless the mask is bool or floating. */
function requireMask(op: string, mask: Tensor): void {
  if (mask.dtype === 'bool' || isFloating(mask.dtype)) return;
  throw new DsError({
    code: 'DS_DTYPE',
    op,
    expected: 'a mask of dtype bool, or of numbers to add to the scores',
    got: describe(mask),
    hint: 'Convert a mask of ones and zeros (Hugging Face) to bool: mask.eq(0).',
  });
}

/** Inverts a bool mask for the kernel, where true means visible; other masks stay. */
function invertMask(op: string, mask: Tensor): Tensor {
  requireMask(op, mask);
  return mask.dtype === 'bool' ? mask.logicalNot() : mask;
}

/**
 * Returns the masks as options of attention(). Throws DS_SHAPE or DS_DTYPE for a mask that does not
 * fit.
 */
export function keyFilter(op: string, masks: AttentionMasks, sizes: ScoreShape): KeyFilter {
  const { attnMask, keyPaddingMask } = masks;
  const [B, , , S] = sizes;
  return {
    mask: attnMask ? invertMask(op, attentionMask(op, attnMask, sizes)) : null,
    keyMask: keyPaddingMask
      ? invertMask(op, paddingMask(op, keyPaddingMask, sizes)).reshape([B, S])
      : null,
  };
}

/** Returns whether a mask requires a gradient, which the fused kernel does not compute. */
export function needsGradient({ attnMask, keyPaddingMask }: AttentionMasks): boolean {
  return isGradEnabled() && [attnMask, keyPaddingMask].some((mask) => mask?.requiresGrad);
}

function splitMask(op: string, mask: Tensor, dtype: DType): SplitMask {
  requireMask(op, mask);
  if (mask.dtype === 'bool') return { hidden: mask, added: null };
  const hidden = mask.lt(lowestOf(mask.dtype));
  const added = where(hidden, 0, mask).to(dtype);
  return { hidden, added };
}

const combineHidden = (a: Tensor | null, b: Tensor | null): Tensor | null =>
  a && b ? where(a, a, b) : (a ?? b);

/** Returns whether key s is after query t: [1, 1, T, S]. */
function hidesLater([, , T, S]: ScoreShape, like: Tensor): Tensor {
  const options = { dtype: 'i32', device: like.device } as const;
  const last = arange(T, { ...options, start: S - T }).reshape([T, 1]);
  return gt(arange(S, options).reshape([1, S]), last).reshape([1, 1, T, S]);
}

/**
 * Returns the attention weights [B, H, T, S] of q [B, H, T, D] and k [B, H, S, D] under masks. A
 * query that sees no key has weights and gradients of 0 (PyTorch: NaN). Throws DS_SHAPE or DS_DTYPE
 * for a mask that does not fit.
 */
function maskedWeights(op: string, q: Tensor, k: Tensor, masks: AttentionMasks): Tensor {
  const [B, H, T, D] = leading(q.shape, 4);
  const sizes = [B, H, T, k.size(2)] as const;
  const { attnMask, keyPaddingMask, isCausal = false } = masks;
  const parts: SplitMask[] = [];
  if (attnMask) parts.push(splitMask(op, attentionMask(op, attnMask, sizes), q.dtype));
  if (keyPaddingMask) parts.push(splitMask(op, paddingMask(op, keyPaddingMask, sizes), q.dtype));
  if (isCausal) parts.push({ hidden: hidesLater(sizes, q), added: null });
  let scores = matmul(q.mul(1 / Math.sqrt(D)), k.transpose());
  for (const { added } of parts) if (added) scores = scores.add(added);
  const hidden = parts.reduce<Tensor | null>((all, part) => combineHidden(all, part.hidden), null);
  if (!hidden) return softmax(scores);
  const weights = softmax(where(hidden, lowestOf(q.dtype), scores));
  return where(hidden, 0, weights);
}

/**
 * Returns maskedWeights() times v [B, H, S, D], and the weights. The product drops a fraction `p`
 * of the weights.
 */
export function maskedAttention(
  op: string,
  [q, k, v]: readonly [Tensor, Tensor, Tensor],
  masks: AttentionMasks,
  p: number,
): { out: Tensor; weights: Tensor } {
  if (sharedTokens()?.heads) throw splitTokensError(op);
  const weights = maskedWeights(op, q, k, masks);
  return { out: matmul(p > 0 ? dropout(weights, p) : weights, v), weights };
}

/** The error of sequence parallelism: each rank has only the queries and keys of its tokens. */
function splitTokensError(op: string): DsError {
  return new DsError({
    code: 'DS_ARGUMENT',
    op: `${op} with sequence parallelism`,
    expected: 'no needWeights, and masks without gradients',
    got: 'needWeights, or a mask with a gradient',
    hint: 'Set sequence_parallel_size to 1.',
  });
}
