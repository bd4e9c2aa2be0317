// Tests that child processes do not get copies of pinned memory.
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { Buffer as Memory } from '../../lib/runtime/buffer.js';
import type { Case } from '../support/case.js';

/** An address range: first, and one past the last. */
type Range = [number, number];

/** Pages that children do not get: the kernel's flag "dc". */
function keptFromChildren(): Range[] {
  const parts = readFileSync('/proc/self/smaps', 'utf8').split(/^VmFlags:(.*)$/m);
  const kept: Range[] = [];
  for (let i = 0; i + 1 < parts.length; i += 2) {
    const flags = (parts[i + 1] as string).split(' ');
    const [, begin, end] = /^([0-9a-f]+)-([0-9a-f]+) /m.exec(parts[i] as string) ?? [];
    if (flags.includes('dc')) kept.push([Number(`0x${begin}`), Number(`0x${end}`)]);
  }
  return kept;
}

/** `ranges` without `others`. */
function without(ranges: Range[], others: Range[]): Range[] {
  let rest = ranges;
  for (const [begin, end] of others) {
    rest = rest.flatMap(([first, last]): Range[] =>
      end <= first || last <= begin
        ? [[first, last]]
        : [[first, begin] as Range, [end, last] as Range].filter(([from, to]) => from < to),
    );
  }
  return rest;
}

const bytesOf = (ranges: Range[]) => ranges.reduce((sum, [begin, end]) => sum + end - begin, 0);

export const cases: Case[] = [
  {
    name: 'a child process gets no copy of pinned memory',
    run(device) {
      // More than the JavaScript heap allocates at once, which Node hides from children as well.
      const size = 200 * 2 ** 20 + 100;
      const before = keptFromChildren();
      const memory = Memory.allocatePinned(device, size);
      const added = without(keptFromChildren(), before);
      const pinned = added.filter((range) => bytesOf([range]) >= size);
      assert.equal(pinned.length, 1, `${bytesOf(added)} more bytes are kept from children`);
      const { status, stdout } = spawnSync(process.execPath, ['-p', '6 * 7'], { encoding: 'utf8' });
      assert.deepEqual({ status, stdout }, { status: 0, stdout: '42\n' });
      memory.release();
      const left = bytesOf(pinned) - bytesOf(without(pinned, keptFromChildren()));
      assert.ok(left < size / 2, `${left} bytes of it are still kept from children`);
    },
  },
];
