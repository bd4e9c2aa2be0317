// The programs of docs/evaluation.md run on a tiny model.
import { spawnSync } from 'node:child_process';
import { cpSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { nn, text } from '../../lib/index.js';
import { writeModel } from '../evaluation/models.js';
import { TOKENIZERS } from '../models/head-rows.js';
import { writeProgram } from './page-program.js';
import { readPage, snippetsOf } from './snippets.js';

const PAGE = 'docs/evaluation.md';
const dir = mkdtempSync(join(tmpdir(), 'ds-evaluation-page-'));

beforeAll(async () => {
  await writeModel(join(dir, 'llama'));
  writeFileSync(join(dir, 'test.jsonl'), '{"text":"The stages shard state."}\n');
  const wordPieces = join(TOKENIZERS, 'wordpiece');
  const { vocabSize } = text.Tokenizer.fromPretrained(wordPieces);
  const sizes = { layers: 1, heads: 2, channels: 16, hidden: 24, maxSeq: 32 };
  const labels = ['bad', 'good'];
  const task = 'sequence-classification';
  await new nn.models.Bert({ ...sizes, vocabSize, task, labels }).save(join(dir, 'reviews'));
  cpSync(join(wordPieces, 'vocab.txt'), join(dir, 'reviews', 'vocab.txt'));
  writeFileSync(join(dir, 'held-out.jsonl'), '{"text":"the film was good","label":"good"}\n');
  const [rows] = snippetsOf(PAGE, readPage(PAGE), ['text']).filter(({ code }) => code[0] === '{');
  writeFileSync(join(dir, 'questions.jsonl'), rows?.code.replaceAll('Question: ', '') ?? '');
});
afterAll(() => rmSync(dir, { recursive: true }));

const programs = snippetsOf(PAGE, readPage(PAGE), ['js']);

test.each(programs.map((program) => [program.line, program.code]))('line %d runs', (_, code) => {
  const file = writeProgram(dir, String(code));
  const { status, stdout, stderr } = spawnSync(process.execPath, [file], {
    cwd: dir,
    encoding: 'utf8',
  });
  expect([status, stderr]).toEqual([0, '']);
  expect(stdout).toMatch(/\d/);
});

test('the page has programs', () => expect(programs).toHaveLength(3));
