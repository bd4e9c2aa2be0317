// Ranks that share a model out continue texts as one rank does, on the CPU and on GPUs.
import assert from 'node:assert/strict';
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { DeviceKind } from '../../lib/runtime/device.js';
import { packageRoot } from '../../lib/runtime/package-root.js';
import { type RankResult, reportsOf, runRanks } from '../comm/ranks.js';
import { skipBelow } from '../parallel/engine.cases.js';
import type { Case } from '../support/case.js';
import type { RanksJob } from './ranks-process.js';

const golden = join(packageRoot(), 'test', 'golden');
const { families } = JSON.parse(readFileSync(join(golden, 'greedy.json'), 'utf8'));
const { prompt, tokens } = families['llama-tied'].at(-1) as { prompt: number[]; tokens: number[] };
const text = tokens.slice(0, 20);
const folder = join(golden, 'transformers', 'models', 'llama-tied');

async function run(kind: DeviceKind, ranks: number, dies: number | null): Promise<RankResult[]> {
  const home = mkdtempSync(join(tmpdir(), 'ds-ranks-'));
  const job: RanksJob = { kind, ranks, folder, prompt, tokens: text, home, dies };
  try {
    return await runRanks('../inference/ranks-process', ranks, { job });
  } finally {
    rmSync(home, { recursive: true });
  }
}

const shared: Case[] = [2, 4].map((ranks) => ({
  name: `inference over ranks: ${ranks} ranks write what one writes`,
  run: async ({ kind }) => {
    const reports = reportsOf<{ failures: string[]; count: number }>(await run(kind, ranks, null));
    for (const { failures, count } of reports) {
      assert.deepEqual(failures, []);
      assert.ok(count > 15, `${count} checks`);
    }
  },
  skip: skipBelow(ranks),
}));

const bereaved: Case[] = [0, 1].map((dies) => ({
  name: `inference over ranks: that rank ${dies} is gone is said on the other`,
  run: async ({ kind }) => {
    const results = await run(kind, 2, dies);
    assert.equal(results[dies]?.code, 7);
    assert.match(String(results[1 - dies]?.report), new RegExp(`rank ${dies}`));
  },
  skip: skipBelow(2),
}));

/** Each on as many devices as it has ranks. */
export const cases: readonly Case[] = [...shared, ...bereaved];
