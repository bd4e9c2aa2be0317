// Tests collectives of a one-rank group on other streams: any stream that waits for one sees its
// result.
import assert from 'node:assert/strict';
import { aloneOn, type ProcessGroup } from '../../lib/comm/index.js';
import type { Device } from '../../lib/runtime/device.js';
import { Event, Stream } from '../../lib/runtime/stream.js';
import { copyAll } from '../../lib/tensor/flat.js';
import { full, held, randn, type Tensor, zeros } from '../../lib/tensor/index.js';
import type { Case } from '../support/case.js';

interface Late {
  world: ProcessGroup;
  /** Runs some milliseconds of copies before the collective. */
  other: Stream;
  /** [n] f32, random. */
  input: Tensor;
  /** [n] f32, NaN until the collective has run. */
  output: Tensor;
}

/** Calls `body` with a late stream, and checks that compute then reads the input. */
function readsInput(device: Device, body: (late: Late) => void): void {
  const n = device.kind === 'cpu' ? 4099 : 2 ** 24 + 3;
  const { world } = aloneOn(device);
  const other = Stream.create(device);
  const [input, output, from, to] = held(() => [
    randn([n], { device }),
    full([n], Number.NaN, { device }),
    zeros([n], { device }),
    zeros([n], { device }),
  ]) as [Tensor, Tensor, Tensor, Tensor];
  const ready = new Event(device).record(device.compute);
  other.wait(ready);
  for (let i = 0; i < 200; ++i) copyAll(to, from, other);
  body({ world, other, input, output });
  const read = held(() => output.clone());
  device.synchronize();
  other.synchronize();
  const different = held(() => read.eq(input).logicalNot().sum());
  assert.equal(different.item(), 0);
  for (const tensor of [input, output, from, to, read, different]) tensor.release();
  for (const one of [ready, other]) one.dispose();
}

const ways: Readonly<Record<string, (late: Late) => void>> = {
  'a copy': ({ world, other, input, output }) => {
    world.allGather(output, input, { stream: other }).wait();
  },
  'one in place': ({ world, other, input, output }) => {
    copyAll(output, input, other);
    world.allGather(output, output, { stream: other }).wait();
  },
  'one that was waited for on another stream before': ({ world, other, input, output }) => {
    const third = Stream.create(other.device);
    const work = world.reduceScatter(output, input, { stream: other });
    work.wait(third);
    work.wait();
    third.synchronize();
    third.dispose();
  },
  'one that is over': ({ world, other, input, output }) => {
    const work = world.allReduce(input, { output, stream: other });
    work.synchronize();
    assert.ok(work.done);
    // A new stream, without any wait, finds all values there.
    const [third, first] = [Stream.create(other.device), new Float32Array(2)];
    output.buffer.read(0, first, third);
    assert.ok(!first.includes(Number.NaN), 'synchronize() came back before the end');
    third.dispose();
  },
};

export const cases: readonly Case[] = Object.entries(ways).map(([way, body]) => ({
  name: `a collective of one rank on a late stream, ${way}: compute sees its result`,
  run: (device) => readsInput(device, body),
}));
