// A gate between the ranks of runRanks(), for those that will not wait long for each other.
import { readdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { setTimeout as pause } from 'node:timers/promises';

/** Resolves when all ranks have come so far: those of a busy machine start seconds apart. */
export async function gate(): Promise<void> {
  const { DS_TEST_GATE: folder = '', DS_TEST_RANKS: ranks, RANK = '' } = process.env;
  writeFileSync(join(folder, RANK), '');
  while (readdirSync(folder).length < Number(ranks)) await pause(2);
}
