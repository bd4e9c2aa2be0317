// Tests that each way to sum gradients over ranks gives the owner the same shard.
import { cpu } from '../../lib/runtime/device.js';
import { sliceFlat } from '../../lib/tensor/flat.js';
import { held, Tensor } from '../../lib/tensor/index.js';
import type { At, Collectives } from '../../lib/zero/collectives.js';
import { AllReduceWire, CastWire, DividedWire, type Wire } from '../../lib/zero/wire.js';

const device = cpu();
const at: At = { stream: device.compute, purpose: 'gradient of a test' };
const done = { wait: () => {} };
const values = (data: readonly number[], dtype: 'f32' | 'f16' = 'f32'): Tensor =>
  held(() => Tensor.from([...data], { dtype, device }));

/** Rank `rank` of two ranks; the other rank always sends `other`. */
function groupOf(rank: number, other: readonly number[]): Collectives {
  const summed = (tensor: Tensor): number[] =>
    tensor.toArray().map((value, i) => value + (other[i] as number));
  const write = (to: Tensor, sums: readonly number[]): void => {
    const from = values(sums, to.dtype as 'f32');
    const bytes = from.bytes;
    to.buffer.copyFrom(
      from.buffer,
      { to: to.offset * (bytes / from.numel), from: 0, bytes },
      device.compute,
    );
    from.release();
  };
  return {
    ...{ rank, size: 2 },
    allReduce(tensor: Tensor) {
      write(tensor, summed(tensor));
      return done;
    },
    reduceScatter(output: Tensor, input: Tensor) {
      const { numel } = output;
      write(output, summed(input).slice(rank * numel, (rank + 1) * numel));
      return done;
    },
  } as unknown as Collectives;
}

/** Each wire, and the factor of what a rank sends. */
const wires: [string, factor: number, (group: Collectives) => Wire][] = [
  ['a plain wire', 1, (group) => group],
  ['a divided wire', 0.25, (group) => new DividedWire(group, 4)],
  ['a cast wire', 1, (group) => new CastWire(group, 'f32')],
];

describe.each(wires)('%s', (_, factor, wireOf) => {
  test.each([
    [0, 'in its own memory'],
    [1, 'in its own memory'],
    [0, 'inside the gradient'],
    [1, 'inside the gradient'],
  ])('reduce_scatter: false changes no bit on rank %i, with a shard %s', (rank, where) => {
    const other = [10, 20, 30, 40].map((value) => value * factor);
    const group = groupOf(rank, other);
    const wire = wireOf(group);
    const shardBy = (way: Wire): number[] => {
      const full = values([1, 2, 3, 4], 'f16');
      const own = { offset: rank * 2, numel: 2 };
      const shard = where === 'in its own memory' ? values([-1, -1], 'f16') : sliceFlat(full, own);
      way.reduceScatter(shard, full, at).wait(at.stream);
      const result = shard.toArray();
      for (const tensor of [shard, full]) tensor.release();
      return result;
    };
    const scattered = shardBy(wire);
    expect(scattered).toHaveLength(2);
    expect(shardBy(new AllReduceWire(wire, group))).toEqual(scattered);
    const sums = [11, 22, 33, 44].slice(rank * 2, rank * 2 + 2);
    expect(scattered).toEqual(sums.map((sum) => sum * factor));
  });
});
