// How attention gets all tokens where ranks share them out: what it asks of whoever shares them.
import type { Tensor } from './tensor.js';

/** Some of the heads of an attention. */
export interface HeadShare {
  /** Number of the first one among all. */
  first: number;
  /** How many there are. */
  whole: number;
}

/**
 * Every rank gives the queries, keys and values of its tokens, attends with some of the heads to
 * all tokens, and gets what all heads make of its own.
 */
export interface HeadExchange {
  /**
   * q [B, H, T / n, D], k and v [B, Hk, T / n, D] of this rank's tokens; `attend` takes those of
   * all tokens and of the heads of `share`, and gives [B, h, T, D]. Returns [B, H, T / n, D].
   */
  apart(
    parts: readonly [q: Tensor, k: Tensor, v: Tensor],
    attend: (q: Tensor, k: Tensor, v: Tensor, share: HeadShare) => Tensor,
  ): Tensor;
  /**
   * The same of qkv [B, T / n, 3C], side by side; `attend` takes [B, T, 3c] of so many heads, those
   * of `share`, and gives [B, T, c]. Returns [B, T / n, C].
   */
  packed(
    qkv: Tensor,
    heads: number,
    attend: (qkv: Tensor, heads: number, share: HeadShare) => Tensor,
  ): Tensor;
}
