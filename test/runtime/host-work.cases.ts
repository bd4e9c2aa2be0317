// Tests that host work runs in stream order.
import assert from 'node:assert/strict';
import * as kernels from '../../lib/runtime/kernels.generated.js';
import { Event, Stream } from '../../lib/runtime/stream.js';
import { copyFlat } from '../../lib/tensor/flat.js';
import { held, Tensor } from '../../lib/tensor/index.js';
import { allocatePinned } from '../../lib/zero/state/memory.js';
import type { Case } from '../support/case.js';

/** More than fit the queue of a GPU's stream at once. */
const TURNS = 1500;

const one = { offset: 0, numel: 1 };

const inTurn: Case = {
  name: 'host work and copies of a stream take turns',
  run(device) {
    const stream = Stream.create(device);
    const word = allocatePinned(device, [1], 'f32');
    const seen = held(() => Tensor.empty([TURNS], 'f32', device));
    stream.wait(new Event(device).record(device.compute));
    for (let i = 0; i < TURNS; ++i) {
      kernels.fillOnHost({ out: word, value: i + 1 }, stream);
      copyFlat(seen, { offset: i, numel: 1 }, word, one, stream);
    }
    stream.synchronize();
    assert.deepEqual(
      seen.toArray(),
      Array.from({ length: TURNS }, (_, i) => i + 1),
    );
    for (const tensor of [word, seen]) tensor.release();
    stream.dispose();
  },
};

const acrossStreams: Case = {
  name: 'host work of two streams that wait for each other by events',
  run(device) {
    const streams = [Stream.create(device), Stream.create(device)] as const;
    const sum = allocatePinned(device, [4096], 'f32');
    const passed = new Event(device);
    for (let i = 0; i < 300; ++i) {
      const [stream, other] = i % 2 ? streams : [streams[1], streams[0]];
      stream.wait(passed);
      // Doubles and adds i: work that runs too early or too late gives another sum.
      const scale = i % 50 === 0 ? 0 : 2;
      kernels.scaleOnHost({ in: sum, out: sum, scale, shift: i, accumulate: false }, stream);
      other.wait(passed.record(stream));
    }
    for (const stream of streams) stream.synchronize();
    let expected = 0;
    for (let i = 0; i < 300; ++i) {
      expected = Math.fround((i % 50 === 0 ? 0 : 2) * expected + i);
    }
    const values = new Float32Array(sum.numel);
    sum.buffer.read(0, values, streams[0]);
    assert.deepEqual(new Set(values), new Set([expected]));
    sum.release();
    passed.dispose();
    for (const stream of streams) stream.dispose();
  },
};

const disposedEarly: Case = {
  name: 'a stream that is disposed of with host work still to come does it all',
  run(device) {
    const stream = Stream.create(device);
    const sum = allocatePinned(device, [1 << 16], 'f32');
    for (let i = 0; i < 100; ++i) {
      kernels.scaleOnHost({ in: sum, out: sum, scale: 1, shift: 1, accumulate: false }, stream);
    }
    stream.dispose();
    const values = new Float32Array(sum.numel);
    sum.buffer.read(0, values, device.compute);
    assert.deepEqual(new Set(values), new Set([100]));
    sum.release();
  },
};

export const cases: readonly Case[] = [inTurn, acrossStreams, disposedEarly];
