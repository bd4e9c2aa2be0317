// Rows of tokens with TRL's masks, and their learned labels.
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { text } from '../../lib/index.js';
import { emptyFolder, expectRejection, removeFolders } from './folders.js';

const TOKENIZERS = join(__dirname, '..', 'golden', 'transformers', 'tokenizers');
const tokenizer = text.Tokenizer.fromPretrained(join(TOKENIZERS, 'qwen2'));
const folder = emptyFolder();

afterAll(removeFolders);

/** The labels of each row; null where nothing is learned. */
async function learnedIds(rows: readonly object[], loss?: text.LossKind) {
  const files = join(folder, 'masked.jsonl');
  writeFileSync(files, rows.map((row) => JSON.stringify(row)).join('\n'));
  const options = { files, tokenizer, length: 64, threads: 0, packing: false };
  const dataset = await text.TextDataset.open({ ...options, ...(loss && { loss }) });
  return Array.from({ length: dataset.length }, (_, i) =>
    Array.from(dataset.get(i).labels, (label) => (label === -100 ? null : label)),
  );
}

test.each([
  [undefined, [null, null, 7, 8], [null, null, null, 8], [null, null, 7, null]],
  ['completion', [null, null, 7, 8], [null, null, null, 8], [null, null, 7, null]],
  ['all', [null, 6, 7, 8], [null, null, null, 8], [null, null, 7, 8]],
] as const)('masks select the learned tokens, with the loss %s', async (loss, ...expected) => {
  const ids = { input_ids: [5, 6, 7, 8] };
  const rows = [
    { ...ids, completion_mask: [0, 0, 1, 1] },
    { ...ids, completion_mask: [0, 1, 1, 1], assistant_masks: [0, 0, 0, 1] },
    { ...ids, completion_mask: [1, 1, 1, 0], labels: [5, -100, 7, 8] },
  ];
  expect(await learnedIds(rows, loss)).toEqual(expected);
});

test("with assistant_masks, only the assistant's tokens are learned", async () => {
  const row = { input_ids: [5, 6, 7], assistant_masks: [0, 0, 1] };
  expect(await learnedIds([row], 'assistant')).toEqual([[null, null, 7]]);
});

test.each([
  [{ completion_mask: [1] }, /2 completion_mask, one for each token, got 1/],
  [{ assistant_masks: [1, 2] }, /assistant_masks: expected integers of \[0, 2\), got 2/],
])('%j is refused', async (mask, message) => {
  await expectRejection(() => learnedIds([{ input_ids: [5, 6], ...mask }]), 'DS_DATA', message);
});
