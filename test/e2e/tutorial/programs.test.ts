// The programs of DeepSpeed's tutorials, in our own words with the same calls, keys and flags, on
// one rank and on two.
import assert from 'node:assert/strict';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { runRanks } from '../../comm/ranks.js';
import type { ProgramReport, ProgramsJob } from './programs-process.js';

const FILES = [
  'getting-started',
  'clients',
  'zero',
  'schedules',
  'parallel',
  'inference',
  'observing',
];

/** Every program does well on every rank, and gives the same on all of them. */
async function runAll(file: string, ranks: number): Promise<void> {
  const folder = mkdtempSync(join(tmpdir(), 'ds-tutorials-'));
  try {
    const job: ProgramsJob = { file, device: 'cpu', folder };
    const results = await runRanks('../e2e/tutorial/programs-process', ranks, { job });
    const reports = results.map(({ rank, code, report, stderr }) => {
      assert.equal(code, 0, `rank ${rank}: ${stderr}`);
      return report as ProgramReport[];
    });
    const failures = reports.flatMap((list, rank) =>
      list.filter(({ error }) => error).map(({ name, error }) => `rank ${rank}, ${name}: ${error}`),
    );
    assert.equal(failures.join('\n'), '');
    assert.ok(
      (reports[0] as ProgramReport[]).length > 0,
      `no program of ${file} on ${ranks} ranks`,
    );
    const texts = reports.map((list) => JSON.stringify(list));
    for (const text of texts) assert.equal(text, texts[0]);
  } finally {
    rmSync(folder, { recursive: true });
  }
}

describe.each(FILES)('tutorials: %s', (file) => {
  test.each([[1], [2]])('on %i CPU ranks', (ranks) => runAll(file, ranks));
});
