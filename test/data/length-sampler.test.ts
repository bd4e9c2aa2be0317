// Tests the order of a sampler that groups samples of similar length.
import { data } from '../../lib/index.js';

const { LengthGroupedSampler } = data;
const lengths = Int32Array.from({ length: 203 }, (_, i) => (i * 37) % 101);
const order = (options: object, epoch = 0): number[] => {
  const sampler = new LengthGroupedSampler(lengths, { batchSize: 4, seed: 3, ...options });
  sampler.setEpoch(epoch);
  return [...sampler];
};

test('every sample is drawn once, in groups with the longest first', () => {
  const all = order({});
  expect([...all].sort((a, b) => a - b)).toEqual(Array.from(lengths.keys()));
  const size = 4 * Math.floor(203 / 16);
  for (let at = 0; at < all.length; at += size) {
    const inside = all.slice(at + 1, at + size).map((i) => lengths[i] as number);
    // The first sample of a group may be swapped with the longest one of all.
    expect(inside).toEqual([...inside].sort((a, b) => b - a));
  }
  expect(lengths[all[0] as number]).toBe(100);
});

test('epochs and seeds differ, ranks share one order, and positions can be restored', () => {
  expect(order({}, 1)).not.toEqual(order({}));
  expect(order({ seed: 4 })).not.toEqual(order({}));
  const ranks = [0, 1].map((rank) => order({ rank, worldSize: 2 }));
  const fullValues = order({});
  expect(ranks.map(({ length }) => length)).toEqual([102, 102]);
  expect(fullValues.slice(0, 4)).toEqual([
    ranks[0]?.[0],
    ranks[1]?.[0],
    ranks[0]?.[1],
    ranks[1]?.[1],
  ]);
  const sampler = new LengthGroupedSampler(lengths, { batchSize: 4, seed: 9 });
  sampler.loadStateDict({ epoch: 1, seed: 3 });
  expect([...sampler.order(200)]).toEqual(order({}, 1).slice(200));
});

test('small sets are one group a batch; wrong arguments are refused', () => {
  const few = new LengthGroupedSampler([1, 3, 2], { batchSize: 8 });
  expect([...few].map((i) => [1, 3, 2][i])).toEqual([3, 2, 1]);
  const makeSampler = (input: unknown, options: object) => () =>
    new LengthGroupedSampler(input as number[], options as never);
  expect(makeSampler(7, { batchSize: 1 })).toThrow('a list of the lengths of all samples, got 7');
  expect(makeSampler([1], { batchSize: 0 })).toThrow('batchSize');
  expect(makeSampler([1], { batch: 1 })).toThrow('"batch"');
});
