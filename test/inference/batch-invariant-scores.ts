// Log-probabilities of completions by a batch-invariant training forward, for the tests of
// batch_invariant.
import { Tensor } from '../../lib/index.js';
import type { Generation } from '../../lib/inference/index.js';
import type { CausalLM } from '../../lib/models/index.js';
import { cpu, type Device } from '../../lib/runtime/device.js';

/** Log-probabilities of the completions by one forward of all rows, padded at the right. */
export function scoresOf(
  model: CausalLM,
  prompts: readonly number[][],
  result: readonly Generation[],
  device: Device = cpu(),
) {
  const rows = result.map(({ tokens }, i) => [...(prompts[i] ?? []), ...tokens]);
  const width = Math.max(...rows.map((row) => row.length));
  const shape = [rows.length, width];
  const ids = new Int32Array(rows.length * width);
  const targets = new Int32Array(rows.length * width).fill(-100);
  const firsts = rows.map((row, i) => i * width + row.length - (result[i]?.tokens.length ?? 0) - 1);
  rows.forEach((row, i) => {
    ids.set(row, i * width);
    targets.set(result[i]?.tokens ?? [], firsts[i]);
  });
  const logs = model.forward(
    Tensor.from(ids, { shape, device }),
    Tensor.from(targets, { shape, device }),
    {
      loss: { tokens: { batchInvariant: true } },
    },
  );
  const all = logs.toArray() as number[];
  return firsts.map((first, i) => all.slice(first, first + (result[i]?.tokens.length ?? 0)));
}

/** Log-probabilities that the sampler recorded. */
export const recordedOf = (result: readonly Generation[]): number[][] =>
  result.map(({ logprobs }) => (logprobs ?? []).map(({ logprob }) => logprob));
