// Which text `ds train` has a model go on from.
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import type { CausalLM } from '../../lib/models/index.js';
import { packageRoot } from '../../lib/runtime/package-root.js';
import { Tokenizer } from '../../lib/text/index.js';
import { continueText, createPrompt, readFirstPrompt } from '../../lib/trainer/command/sample.js';
import { expectError, folderWith, removeFolders } from '../text/folders.js';

const EXAMPLE = join(packageRoot(), 'examples', 'tokenizer');
const tokenizer = Tokenizer.fromPretrained(EXAMPLE);

let dir: string;
beforeAll(() => {
  dir = mkdtempSync(join(tmpdir(), 'ds-sample-'));
});
afterAll(() => {
  rmSync(dir, { recursive: true });
  removeFolders();
});

function file(name: string, text: string): string {
  const path = join(dir, name);
  writeFileSync(path, text);
  return path;
}

test('rows and files without a token are passed over', async () => {
  const blank = file('blank.txt', ' \n');
  const rows = file(
    'rows.jsonl',
    '{"text":""}\n{"prompt":"","completion":"a"}\n{"text":"one two"}',
  );
  const ids = [...tokenizer.encode('one two')];
  expect(await readFirstPrompt(tokenizer, [blank, rows])).toEqual({ text: 'one two', ids });
  expect(await readFirstPrompt(tokenizer, [blank])).toBeNull();
});

test('the sample uses the first row with text, and no row of tokens', async () => {
  const tokens = file('tokens.jsonl', '{"text":""}\n{"input_ids":[1,2]}\n{"text":"later"}');
  expect(await readFirstPrompt(tokenizer, [tokens])).toBeNull();
});

test('an empty text is refused without a chat template', () => {
  const base = Tokenizer.fromPretrained(folderWith(EXAMPLE, {}).path);
  const message = /--sample: expected text of at least one token, got ""/;
  expectError(() => createPrompt(base, ''), 'DS_ARGUMENT', message);
  expect(createPrompt(tokenizer, '').ids.length).toBeGreaterThan(0);
});

test('a text with a token that the model does not have is refused before it trains', () => {
  const base = Tokenizer.fromPretrained(folderWith(EXAMPLE, {}).path);
  const top = Math.max(...base.encode('one two'));
  const message = new RegExp(`--sample: expected tokens of \\[0, ${top}\\), .*got token ${top} in`);
  expectError(() => createPrompt(base, 'one two', top), 'DS_ARGUMENT', message);
  expect(createPrompt(base, 'one two', top + 1).ids).toEqual([...base.encode('one two')]);
});

test('tokens of a padded head beyond the tokenizer have no text', () => {
  const ids = [tokenizer.vocabSize, ...tokenizer.encode('well'), 2 ** 31 - 1];
  const generate = (values: number[]): number[] => [...values, ...ids, tokenizer.eosId as number];
  const model = { maxSeq: 64, generate } as unknown as CausalLM;
  expect(continueText(model, tokenizer, { text: 'a', ids: [1] }, 9)).toBe('well');
});
