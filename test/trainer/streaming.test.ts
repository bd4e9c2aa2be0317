// Rows that `ds train --streaming` reads as they are needed: their order.
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { type BatchSource, type DataPlace, text } from '../../lib/index.js';
import { cpu } from '../../lib/runtime/device.js';
import { packageRoot } from '../../lib/runtime/package-root.js';
import { openRows } from '../../lib/trainer/command/rows.js';

let dir: string;
beforeAll(() => {
  dir = mkdtempSync(join(tmpdir(), 'ds-streaming-'));
});
afterAll(() => rmSync(dir, { recursive: true }));

test.each([
  ['sequential', true],
  ['random', false],
] as const)('in %s order', async (train_sampling_strategy, isInOrder) => {
  const tokenizer = text.Tokenizer.fromPretrained(join(packageRoot(), 'examples', 'tokenizer'));
  const rows = Array.from({ length: 20 }, (_, i) => ({ input_ids: [i + 1, i + 1] }));
  const path = join(dir, 'rows.jsonl');
  writeFileSync(path, rows.map((row) => JSON.stringify(row)).join('\n'));
  const { train } = await openRows(
    { train_file: [path], streaming: true, dataset_num_proc: 0, train_sampling_strategy },
    null,
    { tokenizer, model: { maxSeq: 8, vocabSize: tokenizer.vocabSize } },
  );
  const place = { rank: 0, worldSize: 1, batchSize: 4, device: cpu(), seed: 1, tokenRanks: 1 };
  const seen: number[] = [];
  const open = train as (place: DataPlace) => Promise<BatchSource<text.TextBatch>>;
  for await (const { ids } of await open(place)) {
    seen.push(...ids.toArray().filter((_, i) => i % 2 === 0));
  }
  const sorted = Array.from({ length: 20 }, (_, i) => i + 1);
  expect([...seen].sort((a, b) => a - b)).toEqual(sorted);
  expect(seen.join() === sorted.join()).toBe(isInOrder);
});
