// A gate between the ranks of runRanks(), for ranks with short timeouts.
import { mkdirSync, readdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { setTimeout as pause } from 'node:timers/promises';

/**
 * Resolves when all ranks have reached the gate of this name, because ranks on a busy machine start
 * seconds apart.
 */
export async function gate(name = 'start'): Promise<void> {
  const { DS_TEST_GATE: root = '', DS_TEST_RANKS: ranks, RANK = '' } = process.env;
  const folder = join(root, name);
  mkdirSync(folder, { recursive: true });
  writeFileSync(join(folder, RANK), '');
  while (readdirSync(folder).length < Number(ranks)) await pause(2);
}
