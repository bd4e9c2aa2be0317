// Tests which samples "group_by_length" of a Trainer sorts: as many as transformers' Trainer does.
import { resolveConfig } from '../../lib/config/index.js';
import { cpu } from '../../lib/runtime/device.js';
import { openTrainData } from '../../lib/trainer/train-data.js';

const lengths = Array.from({ length: 480 }, (_, i) => (i * 197) % 479);
const samples = { length: 480, get: (index: number) => lengths[index] as number };

/** Lengths in the order over all ranks. */
async function order(micro: number, accumulation: number, worldSize: number): Promise<number[]> {
  const settings = { data: { sampling: 'group_by_length', lengths, workers: 0 }, tokenizer: null };
  const config = resolveConfig(
    {
      train_micro_batch_size_per_gpu: micro,
      gradient_accumulation_steps: accumulation,
      optimizer: { type: 'SGD', params: { lr: 1 } },
    },
    { worldSize },
  );
  const ranks: number[][] = [];
  for (let rank = 0; rank < worldSize; ++rank) {
    const place = { rank, worldSize, batchSize: micro, device: cpu(), seed: 5, tokenRanks: 1 };
    const data = await openTrainData(samples, settings as never, place, config);
    const seen: number[] = [];
    for await (const batch of data) seen.push(...(batch as { toArray(): number[] }).toArray());
    ranks.push(seen);
  }
  return (ranks[0] as number[]).flatMap((_, i) =>
    ranks.map((localValues) => localValues[i] as number),
  );
}

/** Sizes of the groups with falling lengths; the first sample may be swapped. */
function groups(seen: readonly number[]): number[] {
  const starts = seen.flatMap((length, i) =>
    i === 0 || length > (seen[i - 1] as number) ? [i] : [],
  );
  return [...starts.slice(1), seen.length].map((end, i) => end - (starts[i] as number));
}

test.each([
  // min(480 / (4 batch), 50) batches of micro x accumulation samples, for any number of ranks.
  [2, 3, 1, 120],
  [2, 3, 2, 120],
  [1, 2, 1, 100],
  [1, 1, 2, 50],
])(
  'micro-batch %i, accumulation %i, %i ranks: %i samples',
  async (micro, accumulation, ranks, size) => {
    const seen = await order(micro, accumulation, ranks);
    expect(seen[0]).toBe(478);
    for (let at = 0; at < seen.length; at += size) {
      const inside = seen.slice(at + 1, at + size);
      expect(inside).toEqual([...inside].sort((a, b) => b - a));
    }
    const longest = Math.max(...groups(seen));
    expect([longest > size - 2, longest <= size]).toEqual([true, true]);
  },
);

test('all ranks together see one order, for any number of ranks', async () => {
  expect(await order(2, 3, 2)).toEqual(await order(2, 3, 1));
});
