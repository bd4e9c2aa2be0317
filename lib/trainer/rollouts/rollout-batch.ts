// Batches of rollouts: completions with the sampler's records, padded on the right.

import type { Device } from '../../runtime/device.js';
import { required } from '../../runtime/required.js';
import { Tensor } from '../../tensor/index.js';

/** A sampled completion of a prompt. A checkpoint stores it as JSON. */
export type Rollout = {
  /** Tokens of the prompt. */
  prompt: number[];
  /** Tokens of the completion. */
  tokens: number[];
  /**
   * 1 for sampled tokens, 0 for tokens of tool results, which do not count in the loss; null
   * without tools.
   */
  mask: number[] | null;
  /** Log-probabilities of the tokens, as the sampler recorded them. */
  sampler: number[];
  /**
   * Log-probabilities of the training forward at the time of sampling; null if they are not needed.
   */
  old: number[] | null;
  /** Log-probabilities of the reference; null without a reference. */
  reference: number[] | null;
  advantage: number;
  /** Whether the completion counts in the loss. */
  counts: boolean;
};

/**
 * A batch of B rollouts. Position t of a tensor [B, T] belongs to the token after position t of
 * `ids`.
 */
export interface RolloutBatch {
  /** Tokens of prompts and completions, [B, T] i32. */
  ids: Tensor;
  /** The next token if it counts, else -100, [B, T] i32. */
  targets: Tensor;
  /** 1 where `targets` has a token, else 0, [B, T] f32. */
  mask: Tensor;
  /** Advantages of the completions, [B, 1] f32. */
  advantages: Tensor;
  /** Log-probabilities of the sampler, [B, T] f32. */
  sampler: Tensor;
  /**
   * Log-probabilities at the time of sampling, [B, T] f32. Null in the first update after the
   * sampling, where the model has not changed.
   */
  old: Tensor | null;
  /** Log-probabilities of the reference, [B, T] f32; null without a reference. */
  reference: Tensor | null;
  /** Number of tokens of prompts and completions. */
  length: number;
  /** Number of tokens that count. */
  counted: number;
}

/** Label of positions without a target. */
const IGNORED = -100;

/** Returns the batch of `rollouts`. The token `pad` fills shorter rows. */
export function batchOf(rollouts: readonly Rollout[], pad: number, device: Device): RolloutBatch {
  const lengths = rollouts.map(({ prompt, tokens }) => prompt.length + tokens.length);
  const width = Math.max(...lengths);
  const shape = [rollouts.length, width];
  const size = rollouts.length * width;
  const ids = new Int32Array(size).fill(pad);
  const targets = new Int32Array(size).fill(IGNORED);
  const mask = new Float32Array(size);
  for (const [row, { prompt, tokens, counts, mask: rowMask }] of rollouts.entries()) {
    ids.set([...prompt, ...tokens], row * width);
    if (!counts) continue;
    const first = row * width + prompt.length - 1;
    for (const [i, token] of tokens.entries()) {
      if (rowMask?.[i] === 0) continue;
      targets[first + i] = token;
      mask[first + i] = 1;
    }
  }
  const byToken = (of: (one: Rollout) => number[] | null): Tensor | null => {
    const values = new Float32Array(size);
    for (const [row, rollout] of rollouts.entries()) {
      const own = of(rollout);
      if (!own) return null;
      values.set(own, row * width + rollout.prompt.length - 1);
    }
    return Tensor.from(values, { shape, device });
  };
  const advantages = Float32Array.from(rollouts, ({ advantage }) => advantage);
  return {
    ids: Tensor.from(ids, { shape, device }),
    targets: Tensor.from(targets, { shape, device }),
    mask: Tensor.from(mask, { shape, device }),
    advantages: Tensor.from(advantages, { shape: [rollouts.length, 1], device }),
    sampler: required(byToken(({ sampler }) => sampler)),
    old: byToken(({ old }) => old),
    reference: byToken(({ reference }) => reference),
    length: lengths.reduce((sum, length) => sum + length, 0),
    counted: mask.reduce((sum, value) => sum + value, 0),
  };
}

/** Splits values [B, T] of a batch into the values of each completion's tokens. */
export function byRollout(values: readonly number[], rollouts: readonly Rollout[]): number[][] {
  const width = values.length / rollouts.length;
  return rollouts.map(({ prompt, tokens }, row) => {
    const first = row * width + prompt.length - 1;
    return values.slice(first, first + tokens.length);
  });
}
