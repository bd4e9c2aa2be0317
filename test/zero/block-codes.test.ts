// Tests messages of quantized values: each has its own place in the memory of all.
import { cpu } from '../../lib/runtime/device.js';
import type { Stream } from '../../lib/runtime/stream.js';
import type { View } from '../../lib/runtime/view.js';
import { held, Tensor } from '../../lib/tensor/index.js';
import { liveTensors } from '../../lib/tensor/tensor.js';
import { onDevice, onHost } from '../../lib/zero/gathered-weights.js';
import {
  BLOCK,
  BlockCodes,
  CODE_BYTES,
  gatherCodes,
  QuantizedWire,
  ReplicatedWire,
} from '../../lib/zero/quantized.js';
import type { CollectiveStart, Collectives } from '../../lib/zero/wire.js';

const device = cpu();
const numel = 2 * BLOCK;
const values = (factor: number): Tensor =>
  held(() =>
    Tensor.from(
      Float32Array.from({ length: numel }, (_, i) => factor * (i - 60)),
      { device },
    ),
  );

test.each([8, 4] as const)('messages in %i bits keep to their own words', (bits) => {
  const codes = new BlockCodes(bits, numel);
  expect(codes.words).toBe((numel * bits) / 32 + 2);
  const messages = codes.allocate(3, values(1));
  const factors = [1, -3, 0.5];
  factors.forEach((factor, index) => {
    codes.write(values(factor), messages, index, device.compute);
  });
  factors.forEach((factor, index) => {
    const out = values(0);
    codes.read(messages, index, out, device.compute);
    const expected = values(factor).toArray() as number[];
    const largest = Math.abs(factor) * (numel - 61);
    const error = (out.toArray() as number[]).map((value, i) => Math.abs(value - expected[i]!));
    // Half a step of the largest block's scale.
    expect(Math.max(...error)).toBeLessThanOrEqual((largest / (2 ** bits - 1)) * 1.001);
  });
  messages.release();
});

test('the bytes of an element are those of its message', () => {
  expect(CODE_BYTES).toEqual({ weights: 1.0625, gradients: 0.5625 });
  for (const [bits, bytes] of [
    [8, CODE_BYTES.weights],
    [4, CODE_BYTES.gradients],
  ] as const) {
    expect((4 * new BlockCodes(bits, numel).words) / numel).toBe(bytes);
  }
});

describe('two ranks with the same values', () => {
  const at: CollectiveStart = { stream: device.compute, purpose: 'a test' };
  /** Copies `count` elements to a place of `to`, unless they are there. */
  function copy(to: View, first: number, { buffer, offset }: View, count: number, skip = 0): void {
    const range = { to: 4 * (to.offset + first), from: 4 * (offset + skip), bytes: 4 * count };
    if (to.buffer === buffer && range.to === range.from) return;
    to.buffer.copyFrom(buffer, range, device.compute);
  }
  /** Rank 1 of two; the other rank sends the same. */
  function twins() {
    const calls: string[] = [];
    const done = { wait: () => {} };
    const group = {
      rank: 1,
      size: 2,
      allGather(output: View, input: View) {
        const [count = 0] = input.shape;
        calls.push(`gather ${count}`);
        for (const rank of [0, 1]) copy(output, rank * count, input, count);
        return done;
      },
      allToAll(output: View, input: View) {
        const [count = 0] = input.shape;
        calls.push(`exchange ${count}`);
        for (const rank of [0, 1]) {
          copy(output, (rank * count) / 2, input, count / 2, count / 2);
        }
        return done;
      },
    } as unknown as Collectives;
    return { group, calls };
  }
  const near = (found: number[], expected: number[], step: number): void => {
    const error = found.map((value, i) => Math.abs(value - (expected[i] as number)));
    expect(Math.max(...error)).toBeLessThanOrEqual(step);
  };
  const list = (factor: number) => values(factor).toArray() as number[];

  test.each([
    ['device', onDevice],
    ['host', onHost],
  ])('gather the codes of weights in %s memory', (_, storage) => {
    const { group, calls } = twins();
    const unit = { dtype: 'f32', device } as never;
    const store = storage.create(unit, numel);
    const tensor = values(1);
    store.store(tensor, device.compute);
    device.compute.synchronize();
    const flat = held(() => Tensor.empty([2 * numel], 'f32', device));
    const before = liveTensors();
    gatherCodes(store, flat, group, at).wait(device.compute);
    expect(calls).toEqual([`gather ${new BlockCodes(8, numel).words}`]);
    expect(liveTensors()).toBe(before);
    near(flat.toArray() as number[], [...list(1), ...list(1)], (numel - 60) / 254);
    for (const one of [store, { dispose: () => flat.release() }]) one.dispose();
  });

  test('gather numbers without codes as they are', () => {
    const { group, calls } = twins();
    const unit = { dtype: 'i32', device } as never;
    const store = onDevice.create(unit, numel);
    store.memory?.buffer.write(
      0,
      Int32Array.from({ length: numel }, (_, i) => 1000 * i),
    );
    const flat = held(() => Tensor.empty([2 * numel], 'i32', device));
    gatherCodes(store, flat, group, at).wait(device.compute);
    const expected = Array.from({ length: numel }, (_, i) => 1000 * i);
    expect(flat.toArray()).toEqual([...expected, ...expected]);
    expect(calls).toEqual([`gather ${numel}`]);
    store.dispose();
  });

  test('sum codes of gradients in f32 at the owner', () => {
    const { group, calls } = twins();
    const inner = { allReduce: () => 'inner', reduceScatter: () => 'inner scatter' };
    const wire = new QuantizedWire(inner as never, group);
    const full = held(() => Tensor.from([...list(1), ...list(2)], { dtype: 'f32', device }));
    const shard = held(() => Tensor.empty([numel], 'f32', device));
    const before = liveTensors();
    wire.reduceScatter(shard, full, at).wait(device.compute);
    expect(calls).toEqual([`exchange ${2 * new BlockCodes(4, numel).words}`]);
    expect(liveTensors()).toBe(before);
    near(shard.toArray() as number[], list(4), (4 * (numel - 60)) / 14);
    const fullTensor = held(() => Tensor.empty([4], 'i32', device));
    expect(wire.reduceScatter(shard, fullTensor, at)).toBe('inner scatter');
    expect(wire.allReduce(full, at)).toBe('inner');
  });

  test('sum over replicas after the sum of their group', () => {
    const log: unknown[] = [];
    const work = (name: string) => ({ wait: (stream: Stream) => void log.push(name, stream) });
    const inner = { allReduce: () => work('all'), reduceScatter: () => work('scatter') };
    const replicas = {
      allReduce(sums: unknown, place: CollectiveStart) {
        log.push(sums, place.purpose, place.stream);
        return work('replicas');
      },
    };
    const wire = new ReplicatedWire(inner as never, replicas as never);
    const [full, shard] = [values(1), values(2)];
    const own = 'the stream' as never;
    wire.allReduce(full, at).wait(own);
    wire.reduceScatter(shard, full, at).wait(own);
    expect(log).toEqual([
      ...['all', own, full, 'a test', own, 'replicas', own],
      ...['scatter', own, shard, 'a test', own, 'replicas', own],
    ]);
  });
});
