// The program of docs/grpo.md runs on a tiny model, and its tables have all options and losses.
import { spawnSync } from 'node:child_process';
import { cpSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { nn } from '../../lib/index.js';
import { packageRoot } from '../../lib/runtime/package-root.js';
import { GRPO, RLOO } from '../../lib/trainer/methods/grpo.js';
import { POLICY_LOSSES } from '../../lib/trainer/methods/policy-losses.js';
import type { JsonObject } from '../../types/json.js';
import { optionRows, tableRows } from '../support/option-table.js';
import { writeProgram } from './page-program.js';
import { readPage, snippetsOf } from './snippets.js';

const PAGE = 'docs/grpo.md';
const dir = mkdtempSync(join(tmpdir(), 'ds-rewards-page-'));
afterAll(() => rmSync(dir, { recursive: true }));
const golden = join(packageRoot(), 'test', 'golden', 'transformers');

test('the program runs', async () => {
  const file = join(golden, 'models', 'qwen2', 'config.json');
  const config = JSON.parse(readFileSync(file, 'utf8')) as JsonObject;
  const model = nn.models.fromConfig({ ...config, vocab_size: 1010, max_position_embeddings: 256 });
  const folder = join(dir, 'models', 'qwen2.5-0.5b-instruct');
  await model.save(folder);
  cpSync(join(golden, 'tokenizers', 'qwen2'), folder, { recursive: true });
  const page = readPage(PAGE);
  const [row] = snippetsOf(PAGE, page, ['text']);
  writeFileSync(join(dir, 'prompts.jsonl'), `${(row?.code ?? '').trim()}\n`.repeat(8));
  const [program] = snippetsOf(PAGE, page, ['js']);
  const path = writeProgram(dir, program?.code ?? '');
  const { status, stdout, stderr } = spawnSync(process.execPath, [path], {
    cwd: dir,
    encoding: 'utf8',
    env: { ...process.env, CUDA_VISIBLE_DEVICES: '' },
  });
  expect([status, status === 0 ? '' : stderr]).toEqual([0, '']);
  expect(stdout).toMatch(/right: 0.*\n4 -?[\d.]/s);
});

test('the tables have the declared options', () => {
  const page = readPage(PAGE);
  const [ofGrpo, ofRloo] = [optionRows(GRPO), optionRows(RLOO)];
  expect(tableRows(page, 'option')).toEqual(ofGrpo.filter((row) => ofRloo.includes(row)));
  const grpoOnly = ofGrpo.filter((row) => !ofRloo.includes(row));
  expect(tableRows(page, 'option of grpo()')).toEqual(grpoOnly);
  const rlooOnly = ofRloo.filter((row) => !ofGrpo.includes(row));
  expect(tableRows(page, 'option of rloo()')).toEqual(rlooOnly);
});

test('the table has all losses', () => {
  const named = tableRows(readPage(PAGE), 'name of `loss`').map((row) => /`(\w+)`/.exec(row)?.[1]);
  expect(named.sort()).toEqual(Object.keys(POLICY_LOSSES).sort());
});
