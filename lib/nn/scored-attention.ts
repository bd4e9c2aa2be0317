// Attention by operations that store the scores, for heads that are too wide for the kernels, and
// for bounded scores with dropout. Source: Gemma 2 (soft capping).

import type { DsError } from '../errors.js';
import { formatValue } from '../runtime/format-value.js';
import { argumentError } from '../runtime/input-errors.js';
import { leading, required } from '../runtime/required.js';
import {
  arange,
  dropout as dropped,
  eq,
  type HeadShare,
  logicalAnd,
  scope,
  sharedTokens,
  softmax,
  type Tensor,
  tanh,
  where,
} from '../tensor/index.js';

/** The most channels of a head that the kernels of attention support. */
export const WIDEST_HEAD = 256;

/** How scoredAttention() computes. */
interface ScoredAttentionOptions {
  /** Factor of the products of queries and keys. */
  readonly scale: number;
  /** The bound c of the scores; null: unbounded. */
  readonly cap: number | null;
  /** Number of tokens that queries see, including their own; null: all. */
  readonly window: number | null;
  /** The document of each token, [B, T]; null: each row is one. */
  readonly documents?: Tensor | null;
  /** Fraction of the weights that is dropped. Default: 0. */
  readonly dropout?: number;
  /** Blocks of tokens that queries see: refused. */
  readonly sparsity?: unknown;
  /** The share of all heads that this rank has; null: all. */
  readonly headShare?: HeadShare | null;
}

/**
 * Causal attention [B, H, T, D] with bounded scores, or with wide heads; q [B, H, T, D], k and v
 * [B, Hk, S, D]. The last query sees all keys. It stores the scores [B, H, T, S]; attention() does
 * not. Throws DS_ARGUMENT for sparse patterns, and for a split of tokens or dropped weights
 * over ranks.
 */
export function scoredAttention(
  q: Tensor,
  k: Tensor,
  v: Tensor,
  given: ScoredAttentionOptions,
): Tensor {
  const { scale, cap, window, documents = null, dropout = 0, headShare = null } = given;
  requireDense(given, dropout, headShare);
  const [B, H, T, D] = leading(q.shape, 4);
  const [Hk, S] = [k.size(1), k.size(2)];
  return scope(() => {
    const grouped = q.reshape([B, Hk, (H / Hk) * T, D]);
    const products = grouped.matmul(k.transpose(2, 3)).reshape([B, H, T, S]);
    const scores = cap === null ? products.mul(scale) : tanh(products.mul(scale / cap)).mul(cap);
    const isVisible = visibleKeys(q, S, window, documents);
    const weights = softmax(where(isVisible, scores, Number.NEGATIVE_INFINITY), -1);
    const keptWeights = dropout > 0 ? dropped(weights, dropout) : weights;
    return keptWeights
      .reshape([B, Hk, (H / Hk) * T, S])
      .matmul(v)
      .reshape([B, H, T, D]);
  });
}

/** Returns whether query t sees key s: [1 or B, 1, T, S]. */
function visibleKeys(
  { device, shape }: Tensor,
  S: number,
  window: number | null,
  documents: Tensor | null,
): Tensor {
  const T = required(shape[2]);
  const keys = arange(S, { dtype: 'i32', device }).reshape([1, 1, 1, S]);
  const queries = arange(T, { dtype: 'i32', device })
    .add(S - T)
    .reshape([1, 1, T, 1]);
  const earlier = keys.le(queries);
  const inWindow = window === null ? earlier : logicalAnd(earlier, keys.gt(queries.sub(window)));
  if (!documents) return inWindow;
  const [B, all] = leading(documents.shape, 2);
  const sameDocument = eq(documents.reshape([B, 1, all, 1]), documents.reshape([B, 1, 1, all]));
  return logicalAnd(inWindow, sameDocument);
}

function requireDense(
  { sparsity }: ScoredAttentionOptions,
  dropout: number,
  headShare: HeadShare | null,
): void {
  if (sparsity)
    throw unsupportedError('no sparse pattern', formatValue(sparsity), 'Omit nn.sparsify().');
  if (sharedTokens()?.heads) {
    const hint = 'Set sequence_parallel_size to 1; tensor_parallel works.';
    throw unsupportedError('all tokens on each rank', 'tokens split over ranks', hint);
  }
  if (dropout > 0 && headShare) {
    const hint = 'Read the model with { attentionDropout: 0 }.';
    throw unsupportedError('no dropped weights under tensor_parallel', String(dropout), hint);
  }
}

function unsupportedError(expected: string, got: string, hint: string): DsError {
  const op = 'attention with bounded scores or heads of more than 256 channels';
  return argumentError(op, expected, got, hint);
}
