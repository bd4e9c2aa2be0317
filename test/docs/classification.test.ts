// The programs of docs/classification.md run on a tiny model.
import { spawnSync } from 'node:child_process';
import { cpSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { nn, seed, text } from '../../lib/index.js';
import { TOKENIZERS } from '../models/head-rows.js';
import { writeProgram } from './page-program.js';
import { readPage, snippetsOf } from './snippets.js';

const PAGE = 'docs/classification.md';
const dir = mkdtempSync(join(tmpdir(), 'ds-classification-page-'));

beforeAll(async () => {
  const from = join(TOKENIZERS, 'wordpiece');
  const { vocabSize } = text.Tokenizer.fromPretrained(from);
  seed(1);
  const sizes = { layers: 1, heads: 2, channels: 16, hidden: 24, maxSeq: 512 };
  await new nn.models.Bert({ ...sizes, vocabSize, task: 'masked-lm' }).save(join(dir, 'bert'));
  cpSync(join(from, 'vocab.txt'), join(dir, 'bert', 'vocab.txt'));
  const [rows] = snippetsOf(PAGE, readPage(PAGE), ['text']);
  writeFileSync(join(dir, 'reviews.jsonl'), rows?.code ?? '');
});
afterAll(() => rmSync(dir, { recursive: true }));

const programs = snippetsOf(PAGE, readPage(PAGE), ['js']);

test('the programs run in the order of the page, because later ones read files of earlier ones', () => {
  const results = programs.map(({ line, code }) => {
    const file = writeProgram(dir, code);
    const { status, stderr } = spawnSync(process.execPath, [file], { cwd: dir, encoding: 'utf8' });
    return [line, status, stderr.match(/^\w*Error.*/m)];
  });
  expect(results).toEqual(programs.map(({ line }) => [line, 0, null]));
});

test('the page has programs', () => expect(programs).toHaveLength(6));
