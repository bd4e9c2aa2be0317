// Records a checkpoint of every kind, as the library writes them today, and how training goes on
// after each:
//     node -r ./test/support/run-typescript.cjs test/checkpoint/record-golden.ts OUTDIR
import { mkdirSync, writeFileSync } from 'node:fs';
import { join, resolve } from 'node:path';

import { consolidate } from '../../lib/checkpoint/index.js';
import { reportsOf, runRanks } from '../comm/ranks.js';
import type { GoldenJob, GoldenReport } from './golden-process.js';

async function main(dir: string): Promise<void> {
  mkdirSync(dir, { recursive: true });
  const expected: Record<string, unknown> = {};
  for (const ranks of [1, 2] as const) {
    const job: GoldenJob = { what: 'record', dir, ranks };
    const results = await runRanks('../checkpoint/golden-process', ranks, { job });
    const reports = reportsOf<GoldenReport>(results);
    for (const name of Object.keys(reports[0] as GoldenReport)) {
      expected[name] = reports.map((report) => report[name]?.next);
    }
  }
  writeFileSync(join(dir, 'expected.json'), `${JSON.stringify(expected)}\n`);
  await consolidate(join(dir, 'two-stage3'), join(dir, 'consolidated'), { maxShardBytes: 1500 });
}

void main(resolve(process.argv[2] as string));
