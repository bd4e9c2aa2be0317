// The interface by which attention receives all tokens in sequence parallelism.
import type { Tensor } from './tensor.js';

/** Some of the heads of an attention. */
export interface HeadShare {
  /** Index of the first head among all heads. */
  first: number;
  /** Number of heads on all ranks. */
  whole: number;
}

/**
 * Every rank passes the queries, keys and values of its tokens. It computes attention over all
 * tokens for some of the heads, and receives the output of all heads for its tokens.
 */
export interface HeadExchange {
  /**
   * q [B, H, T / n, D], k and v [B, Hk, T / n, D] hold this rank's tokens. `attend` receives all
   * tokens of the heads of `share` and returns [B, h, T, D]. Returns [B, H, T / n, D].
   */
  apart(
    parts: readonly [q: Tensor, k: Tensor, v: Tensor],
    attend: (q: Tensor, k: Tensor, v: Tensor, share: HeadShare) => Tensor,
  ): Tensor;
  /**
   * Returns apart() for a packed qkv [B, T / n, 3C]. `attend` receives [B, T, 3c] for the
   * heads of `share` and returns [B, T, c]. Returns [B, T / n, C].
   */
  packed(
    qkv: Tensor,
    heads: number,
    attend: (qkv: Tensor, heads: number, share: HeadShare) => Tensor,
  ): Tensor;
}
