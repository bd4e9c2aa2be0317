// Language models on 2, 3 and 4 ranks equal whole ones: first values, losses, gradients, texts, files.
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { nn, seed } from '../../lib/index.js';
import { reportsOf, runRanks } from '../comm/ranks.js';

let dir: string;
const folders = (): string[] => ['gpt2', 'llama'].map((name) => join(dir, name));
beforeAll(async () => {
  dir = mkdtempSync(join(tmpdir(), 'ds-parallel-'));
  const sizes = { vocabSize: 37, maxSeq: 12, layers: 1, heads: 4, channels: 16 };
  seed(3);
  const models = [
    new nn.models.GPT2(sizes),
    new nn.models.Llama({ ...sizes, kvHeads: 2, hidden: 10 }),
  ];
  const [gpt2, llama] = folders() as [string, string];
  await models[0]?.save(gpt2, { dtype: 'bf16' });
  await models[1]?.save(llama);
});
afterAll(() => rmSync(dir, { recursive: true, force: true }));

test.each([2, 3, 4])('models on %i ranks', async (ranks) => {
  const job = { folders: folders() };
  const results = await runRanks('../parallel/models-process', ranks, { job });
  const reports = reportsOf<{ failures: string[]; count: number }>(results);
  expect(reports.flatMap(({ failures }) => failures).slice(0, 12)).toEqual([]);
  for (const { count } of reports) expect(count).toBeGreaterThan(300);
});
