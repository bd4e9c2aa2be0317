// Pools the hidden states of tokens into one vector for each sequence.

import { formatValue } from '../../runtime/format-value.js';
import { argumentError } from '../../runtime/input-errors.js';
import { leading, required } from '../../runtime/required.js';
import {
  arange,
  concat,
  indexSelect,
  noGrad,
  ones,
  type Tensor,
  where,
} from '../../tensor/index.js';

/** All modes. The modes of a folder have this order. */
export const POOLING_MODES = [
  'cls_token',
  'max_tokens',
  'mean_tokens',
  'mean_sqrt_len_tokens',
  'weightedmean_tokens',
  'lasttoken',
] as const;

/** Modes of sentence-transformers' Pooling, by the ends of its keys in config.json. */
export type PoolingMode = (typeof POOLING_MODES)[number];

/** How an embedding is computed from hidden states. */
export interface Pooling {
  /** The modes; their vectors are concatenated. */
  modes: readonly PoolingMode[];
  /** Whether vectors are scaled to length 1. */
  normalize: boolean;
}

/** A value below every hidden state. */
const LOWEST = -1e9;

/** Returns the hidden state at position `places[b]` of each row: [B, C] of [B, T, C]. */
export function selectTokens(hidden: Tensor, places: Tensor): Tensor {
  const [B, T, C] = leading(hidden.shape, 3);
  const { device } = hidden;
  const rows = noGrad(() => arange(B, { dtype: 'i32', device }).mul(T).add(places.to('i32')));
  return indexSelect(hidden.reshape([B * T, C]), 0, rows);
}

/** Returns the hidden state of the first token of each sequence, [B, C]. */
export const findFirst = (hidden: Tensor): Tensor => hidden.narrow(1, 0, 1).squeeze(1).contiguous();

/** Returns the position of the first token, [B] i32; `mask` [B, T] is 1 for tokens. */
function firstPositions(mask: Tensor): Tensor {
  return noGrad(() => mask.to('f32').argmax(1).to('i32'));
}

/** Returns the position of the last token, [B] i32; 0 in a row without tokens. */
export function lastPositions(mask: Tensor): Tensor {
  return noGrad(() => {
    const places = arange(mask.size(1), { dtype: 'f32', device: mask.device });
    return mask.to('f32').mul(places).argmax(1).to('i32');
  });
}

/** Returns 1 for tokens and 0 for padding, [B, T, 1] in the dtype of the hidden states. */
const tokenWeights = (hidden: Tensor, mask: Tensor | null): Tensor =>
  noGrad(() => {
    const [B, T] = leading(hidden.shape, 3);
    const seen = mask ?? ones([B, T], { dtype: 'i32', device: hidden.device });
    return seen.to(hidden.dtype).unsqueeze(2);
  });

/**
 * Returns the mean of the tokens' hidden states, [B, C]. `mask` is 1 for tokens; null: all tokens.
 */
export function meanTokens(hidden: Tensor, mask: Tensor | null): Tensor {
  const weights = tokenWeights(hidden, mask);
  return hidden.mul(weights).sum(1).div(weights.sum(1).clamp(1e-9));
}

/** Returns one vector for each sequence, [B, C]. `mask` is 1 for tokens; null: all tokens. */
function poolBy(mode: PoolingMode, hidden: Tensor, mask: Tensor | null): Tensor {
  if (mode === 'cls_token')
    return mask ? selectTokens(hidden, firstPositions(mask)) : findFirst(hidden);
  if (mode === 'mean_tokens') return meanTokens(hidden, mask);
  const [, T] = leading(hidden.shape, 3);
  if (mode === 'lasttoken') {
    if (mask) return selectTokens(hidden, lastPositions(mask));
    return hidden
      .narrow(1, T - 1, 1)
      .squeeze(1)
      .contiguous();
  }
  if (mode === 'max_tokens') {
    return (mask ? where(mask.eq(0).unsqueeze(2), LOWEST, hidden) : hidden).max(1);
  }
  const weights = tokenWeights(hidden, mask);
  if (mode === 'mean_sqrt_len_tokens') {
    return hidden.mul(weights).sum(1).div(weights.sum(1).clamp(1e-9).sqrt());
  }
  const { dtype, device } = hidden;
  const numbered = weights.mul(
    arange(T, { start: 1, dtype: 'f32', device }).to(dtype).reshape([T, 1]),
  );
  return hidden.mul(numbered).sum(1).div(numbered.sum(1).clamp(1e-9));
}

/** Returns the concatenated vectors of all modes, [B, C * modes]. */
export function pool(modes: readonly PoolingMode[], hidden: Tensor, mask: Tensor | null): Tensor {
  const parts = modes.map((mode) => poolBy(mode, hidden, mask));
  return parts.length === 1 ? required(parts[0]) : concat(parts, 1);
}

/** Returns the rows, scaled to length 1. Source: PyTorch's normalize(). */
export function normalizeRows(rows: Tensor): Tensor {
  return rows.div(rows.square().sum({ dim: -1, keepDim: true }).sqrt().clamp(1e-12));
}

/** Returns `modes`. Throws DS_ARGUMENT for an unknown mode. */
export function requireModes(op: string, modes: unknown): readonly PoolingMode[] {
  const all = Array.isArray(modes) ? modes : [modes];
  const isKnown = all.length > 0 && all.every((mode) => POOLING_MODES.includes(mode));
  if (isKnown) return all as PoolingMode[];
  throw argumentError(
    op,
    POOLING_MODES.map((mode) => JSON.stringify(mode)).join(', '),
    formatValue(modes),
  );
}
