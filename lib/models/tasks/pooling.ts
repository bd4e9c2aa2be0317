// From hidden states of tokens to one vector for each sequence.

import { formatValue } from '../../runtime/format-value.js';
import { refused } from '../../runtime/refused.js';
import { leading } from '../../runtime/required.js';
import {
  arange,
  concat,
  indexSelect,
  noGrad,
  ones,
  type Tensor,
  where,
} from '../../tensor/index.js';

/** Modes of sentence-transformers' Pooling, by the ends of its keys in config.json. */
export type PoolingMode =
  | 'cls_token'
  | 'max_tokens'
  | 'mean_tokens'
  | 'mean_sqrt_len_tokens'
  | 'weightedmean_tokens'
  | 'lasttoken';

/** How an embedding follows from hidden states. */
export interface Pooling {
  /** Vectors of these modes are side by side. */
  modes: readonly PoolingMode[];
  /** Whether the vector is divided by its length. */
  normalize: boolean;
}

/** All modes, in the order in which their vectors are concatenated. */
export const POOLING_MODES: readonly PoolingMode[] = [
  ...(['cls_token', 'max_tokens', 'mean_tokens', 'mean_sqrt_len_tokens'] as const),
  ...(['weightedmean_tokens', 'lasttoken'] as const),
];

/** Lower than every hidden state. */
const LOWEST = -1e9;

/** The tokens `places` [B] of hidden states [B, T, C], as [B, C]. */
export function chosenTokens(hidden: Tensor, places: Tensor): Tensor {
  const [B, T, C] = leading(hidden.shape, 3);
  const { device } = hidden;
  const rows = noGrad(() => arange(B, { dtype: 'i32', device }).mul(T).add(places.to('i32')));
  return indexSelect(hidden.reshape([B * T, C]), 0, rows);
}

/** The first token of each sequence, [B, C]. */
export const firstTokens = (hidden: Tensor): Tensor =>
  hidden.narrow(1, 0, 1).squeeze(1).contiguous();

/** The place of the first token, [B] i32; `mask` [B, T] is 1 for tokens. */
export function firstPlaces(mask: Tensor): Tensor {
  return noGrad(() => mask.to('f32').argmax(1).to('i32'));
}

/** The place of the last token, [B] i32; 0 in a row without tokens. */
export function lastPlaces(mask: Tensor): Tensor {
  return noGrad(() => {
    const places = arange(mask.size(1), { dtype: 'f32', device: mask.device });
    return mask.to('f32').mul(places).argmax(1).to('i32');
  });
}

/** 1 for tokens and 0 for padding, [B, T, 1] of the hidden states' dtype. */
const weightsOf = (hidden: Tensor, mask: Tensor | null): Tensor =>
  noGrad(() => {
    const [B, T] = leading(hidden.shape, 3);
    const seen = mask ?? ones([B, T], { dtype: 'i32', device: hidden.device });
    return seen.to(hidden.dtype).unsqueeze(2);
  });

/** The mean of the tokens, [B, C]. */
export function meanTokens(hidden: Tensor, mask: Tensor | null): Tensor {
  const weights = weightsOf(hidden, mask);
  return hidden.mul(weights).sum(1).div(weights.sum(1).clamp(1e-9));
}

/** One vector of each sequence by `mode`, [B, C]. `mask` is 1 for tokens; null: all are. */
function pooledBy(mode: PoolingMode, hidden: Tensor, mask: Tensor | null): Tensor {
  if (mode === 'cls_token')
    return mask ? chosenTokens(hidden, firstPlaces(mask)) : firstTokens(hidden);
  if (mode === 'mean_tokens') return meanTokens(hidden, mask);
  const [, T] = leading(hidden.shape, 3);
  if (mode === 'lasttoken') {
    if (mask) return chosenTokens(hidden, lastPlaces(mask));
    return hidden
      .narrow(1, T - 1, 1)
      .squeeze(1)
      .contiguous();
  }
  if (mode === 'max_tokens') {
    return (mask ? where(mask.eq(0).unsqueeze(2), LOWEST, hidden) : hidden).max(1);
  }
  const weights = weightsOf(hidden, mask);
  if (mode === 'mean_sqrt_len_tokens') {
    return hidden.mul(weights).sum(1).div(weights.sum(1).clamp(1e-9).sqrt());
  }
  const { dtype, device } = hidden;
  const numbered = weights.mul(
    arange(T, { start: 1, dtype: 'f32', device }).to(dtype).reshape([T, 1]),
  );
  return hidden.mul(numbered).sum(1).div(numbered.sum(1).clamp(1e-9));
}

/** Vectors of all modes side by side, [B, C * modes]. */
export function pooled(modes: readonly PoolingMode[], hidden: Tensor, mask: Tensor | null): Tensor {
  const parts = modes.map((mode) => pooledBy(mode, hidden, mask));
  return parts.length === 1 ? (parts[0] as Tensor) : concat(parts, 1);
}

/** Each row divided by its length. Source: PyTorch's normalize(). */
export function unitRows(rows: Tensor): Tensor {
  return rows.div(rows.square().sum({ dim: -1, keepDim: true }).sqrt().clamp(1e-12));
}

/** Returns `modes`. Throws DS_ARGUMENT for an unknown one. */
export function requireModes(op: string, modes: unknown): readonly PoolingMode[] {
  const all = Array.isArray(modes) ? modes : [modes];
  const isKnown = all.length > 0 && all.every((mode) => POOLING_MODES.includes(mode));
  if (isKnown) return all as PoolingMode[];
  throw refused(
    op,
    POOLING_MODES.map((mode) => JSON.stringify(mode)).join(', '),
    formatValue(modes),
  );
}
