// Tests that copies between a device and pinned memory transfer exactly the requested bytes.
import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import { Buffer as Memory } from '../../lib/runtime/buffer.js';
import type { Device } from '../../lib/runtime/device.js';
import { Event, Stream } from '../../lib/runtime/stream.js';
import type { Case } from '../support/case.js';

/** The size limit of direct copies on a GPU, see csrc/cuda/direct_copy.h. */
const FEW = 256 * 1024;
const SIZES = [1, 3, 4, 15, 16, 60, 4096, 4099, 70_001, FEW - 1, FEW, FEW + 1, 3 * FEW];
/** Offsets of both ends that allow words of 16, of 4 and of 1 byte. */
const OFFSETS = [
  [0, 0],
  [16, 48],
  [4, 8],
  [3, 0],
  [0, 7],
] as const;
const MARGIN = 64;

/** Bytes around `part` as they were, and `part` at `offset`. */
function expectedBytes(before: Uint8Array, part: Uint8Array, offset: number): Uint8Array {
  const out = Uint8Array.from(before);
  out.set(part, offset);
  return out;
}

/** Copies to the device on `stream`, and back. */
function copies(device: Device, stream: Stream, sizes: readonly number[]): void {
  for (const bytes of sizes) {
    const room = bytes + 2 * MARGIN;
    const [there, host, back] = [
      Memory.allocate(device, room),
      Memory.allocatePinned(device, room),
      Memory.allocatePinned(device, room),
    ];
    const allocated = new Event(device).record(device.compute);
    stream.wait(allocated);
    allocated.dispose();
    for (const [to, from] of OFFSETS) {
      const [sent, before, after] = [0, 1, 2].map(() => Uint8Array.from(randomBytes(room)));
      host.write(0, sent as Uint8Array, stream);
      there.write(0, before as Uint8Array, stream);
      back.write(0, after as Uint8Array, stream);
      stream.synchronize();
      there.copyFrom(host, { to, from, bytes }, stream);
      back.copyFrom(there, { to: from, from: to, bytes }, stream);
      const [arrived, returned] = [new Uint8Array(room), new Uint8Array(room)];
      there.read(0, arrived, stream);
      back.read(0, returned, stream);
      const part = (sent as Uint8Array).subarray(from, from + bytes);
      const label = `${bytes} bytes from ${from} to ${to}`;
      // Large arrays are compared as bytes: element by element takes seconds.
      const same = (a: Uint8Array, b: Uint8Array): boolean => Buffer.compare(a, b) === 0;
      assert.ok(same(arrived, expectedBytes(before as Uint8Array, part, to)), label);
      assert.ok(same(returned, expectedBytes(after as Uint8Array, part, from)), label);
    }
    for (const memory of [there, host, back]) memory.release();
  }
}

export const cases: Case[] = [
  {
    name: 'copies of all sizes between a device and pinned memory, there and back',
    run: (device) => copies(device, device.compute, SIZES),
  },
  {
    name: 'copies of all sizes while streams of state live, past them and between them',
    run(device) {
      const streams = (['bulk', 'usual', 'awaited'] as const).map((urgency) =>
        Stream.create(device, urgency, urgency),
      );
      const sizes = [...SIZES, 5 * FEW + 48, 2 ** 22];
      for (const stream of streams) copies(device, stream, sizes);
      for (const stream of streams) stream.dispose();
    },
  },
];
