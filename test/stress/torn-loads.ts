// 3,000 loads beside a writer that replaces what they read, of a checkpoint and of a folder of weights: 0 are torn.
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { checkpointLoads, folderLoads } from '../checkpoint/torn-loads.js';

const LOADS = 3000;

async function main(): Promise<void> {
  for (const [what, loads] of [
    ['a checkpoint', checkpointLoads],
    ['a folder of weights', folderLoads],
  ] as const) {
    const dir = mkdtempSync(join(tmpdir(), 'ds-torn-'));
    try {
      const { states, torn } = await loads(dir, LOADS);
      console.log(`${LOADS} loads of ${what}, ${states} states: ${torn.length} torn`);
      if (torn.length > 0) process.exitCode = 1;
      for (const line of torn.slice(0, 20)) console.log(line);
    } finally {
      rmSync(dir, { recursive: true, force: true });
    }
  }
}

void main();
