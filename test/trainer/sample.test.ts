// Which text `ds train` has a model go on from.
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { packageRoot } from '../../lib/runtime/package-root.js';
import { Tokenizer } from '../../lib/text/index.js';
import { firstPrompt, promptOf } from '../../lib/trainer/command/sample.js';
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
  expect(await firstPrompt(tokenizer, [blank, rows])).toEqual({ text: 'one two', ids });
  expect(await firstPrompt(tokenizer, [blank])).toBeNull();
});

test('the first row that has something decides, and one of tokens shows nothing', async () => {
  const tokens = file('tokens.jsonl', '{"text":""}\n{"input_ids":[1,2]}\n{"text":"later"}');
  expect(await firstPrompt(tokenizer, [tokens])).toBeNull();
});

test('a text without tokens is refused, where no chat template stands around it', () => {
  const base = Tokenizer.fromPretrained(folderWith(EXAMPLE, {}).path);
  const message = /--sample: expected a text of a token or more, got ""/;
  expectError(() => promptOf(base, ''), 'DS_ARGUMENT', message);
  expect(promptOf(tokenizer, '').ids.length).toBeGreaterThan(0);
});
