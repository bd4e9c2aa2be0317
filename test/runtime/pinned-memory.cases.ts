// Pinned memory and child processes, which would get copies of all of it.
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { Buffer as Memory } from '../../lib/runtime/buffer.js';
import type { Case } from '../support/case.js';

/** KiB of this process that a child does not get: pages with the kernel's flag "dc". */
function keptFromChildren(): number {
  const maps = readFileSync('/proc/self/smaps', 'utf8').split(/^VmFlags:/m);
  let kept = 0;
  for (let i = 0; i + 1 < maps.length; ++i) {
    const flags = (maps[i + 1] as string).split('\n', 1)[0] as string;
    const [size] = /^Size:\s+(\d+)/m.exec(maps[i] as string)?.slice(1) ?? [];
    if (flags.split(' ').includes('dc')) kept += Number(size);
  }
  return kept;
}

export const cases: Case[] = [
  {
    name: 'a child process gets no copy of pinned memory',
    run(device) {
      const before = keptFromChildren();
      const memory = Memory.allocatePinned(device, 5 * 2 ** 20 + 100);
      const kept = keptFromChildren() - before;
      assert.ok(kept >= 5 * 1024, `${kept} KiB more are kept from children`);
      const { status, stdout } = spawnSync(process.execPath, ['-p', '6 * 7'], { encoding: 'utf8' });
      assert.deepEqual({ status, stdout }, { status: 0, stdout: '42\n' });
      memory.release();
      assert.ok(keptFromChildren() - before < 1024);
    },
  },
];
