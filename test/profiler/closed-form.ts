// GPT-2's matmul work from its published shape only, independent of any op counts.

export interface Gpt2Shape {
  channels: number;
  layers: number;
  vocabulary: number;
  batch: number;
  seq: number;
}

/** Multiply-accumulates of a forward; `headWide` has the vocabulary padded to a multiple of 64. */
export function gpt2Macs({ channels: C, layers: L, vocabulary: V, batch: B, seq: T }: Gpt2Shape): {
  blocks: number;
  headWide: number;
} {
  const perToken = 12 * C * C + T * C;
  const tokens = B * T;
  return {
    blocks: L * tokens * perToken,
    headWide: tokens * C * 64 * Math.ceil(V / 64),
  };
}

/**
 * Model FLOPs of one token, forward and backward: 6 N + 6 L C T. All N parameters count as
 * matrices, and a causal mask as half the scores. Source: Chowdhery et al. 2022 (PaLM), appendix B,
 * with 12 L C T without a mask.
 */
export function modelFlopsPerToken(
  parameters: number,
  { channels: C, layers: L, seq: T }: Gpt2Shape,
): number {
  return 6 * parameters + 6 * L * C * T;
}

export function relative(value: number, expected: number): number {
  return Math.abs(value / expected - 1);
}
