// Tests that each way to sum gradients over ranks gives the owner the same shard.
import { cpu } from '../../lib/runtime/device.js';
import { sliceFlat } from '../../lib/tensor/flat.js';
import { held, Tensor } from '../../lib/tensor/index.js';
import { liveTensors } from '../../lib/tensor/tensor.js';
import { type GradientFlow, ownedGradients, shardedGradients } from '../../lib/zero/gradients.js';
import type { Partition } from '../../lib/zero/partition.js';
import {
  AllReduceWire,
  CastWire,
  type CollectiveStart,
  type Collectives,
  DividedWire,
  type Wire,
} from '../../lib/zero/wire.js';

const device = cpu();
const at: CollectiveStart = { stream: device.compute, purpose: 'gradient of a test' };
const done = { wait: () => {} };
const values = (data: readonly number[], dtype: 'f32' | 'f16' = 'f32'): Tensor =>
  held(() => Tensor.from([...data], { dtype, device }));

/** Rank `rank` of two ranks; the other rank always sends `other`. */
function groupOf(rank: number, other: readonly number[]): Collectives {
  const sum = (tensor: Tensor): number[] =>
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
    rank,
    size: 2,
    allReduce(tensor: Tensor) {
      write(tensor, sum(tensor));
      return done;
    },
    reduceScatter(output: Tensor, input: Tensor) {
      const { numel } = output;
      write(output, sum(input).slice(rank * numel, (rank + 1) * numel));
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

describe('a flow of gradients', () => {
  /** The transfer of one micro-batch at rank 1 of two, complete; and its calls. */
  function flowOfRank(flowOf: (route: never) => GradientFlow) {
    const log: unknown[] = [];
    const group = groupOf(1, [10, 20, 30, 40]);
    const wire: Pick<Wire, 'reduceScatter'> = {
      reduceScatter: (output, input, place) => {
        log.push([place.purpose, place.stream === device.compute]);
        return group.reduceScatter(output, input, place);
      },
    };
    const gradient = {
      take: () => values([1, 2, 3, 4]),
      drop: () => void log.push('dropped'),
    };
    const partition = {
      unit: { name: 'u', device, gradient },
      numel: 2,
      grad: null as Tensor | null,
      range: { offset: 2, numel: 2 },
    };
    const add = (transfer: Parameters<import('../../lib/zero/gradients.js').Buckets['add']>[0]) => {
      log.push(transfer.numel);
      transfer.start(device.compute).wait(device.compute);
      transfer.complete(device.compute);
      transfer.free?.();
    };
    const flow = flowOf({ wire, factor: 0.5, buckets: { add } } as never);
    const receiver = { receiveReduced: (one: unknown) => void log.push(one === partition) };
    const reduce = (isLast: boolean): void =>
      flow.reduce(partition as unknown as Partition, isLast ? receiver : null);
    return { flow, partition, reduce, log };
  }

  test('sends gradients to the owner once a step', () => {
    const before = liveTensors();
    const { flow, partition, reduce, log } = flowOfRank(ownedGradients);
    expect([flow.takesEach, flow.factor]).toEqual([false, 0.5]);
    reduce(true);
    expect(log).toEqual([4, ['gradient of u', true], true]);
    expect(partition.grad?.toArray()).toEqual([33, 44]);
    partition.grad?.release();
    reduce(false);
    expect(log.slice(3)).toEqual([4, ['gradient of u', true]]);
    partition.grad?.release();
    expect(liveTensors()).toBe(before);
  });

  test('sends shards to the owner in every micro-batch, where they add up', () => {
    const before = liveTensors();
    const { flow, partition, reduce, log } = flowOfRank(shardedGradients);
    expect([flow.takesEach, flow.factor]).toEqual([true, 0.5]);
    reduce(false);
    const sum = partition.grad;
    expect(sum?.toArray()).toEqual([33, 44]);
    expect(liveTensors()).toBe(before + 1);
    reduce(true);
    const micro = ['dropped', 4, ['gradient of u', true]];
    expect(log).toEqual([...micro, ...micro, true]);
    expect(partition.grad).toBe(sum);
    expect(sum?.toArray()).toEqual([66, 88]);
    sum?.release();
    expect(liveTensors()).toBe(before);
  });
});
