// The programs of docs/post-training.md run on a tiny model, and its tables have all losses and
// options.
import { spawnSync } from 'node:child_process';
import { cpSync, existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { nn } from '../../lib/index.js';
import { packageRoot } from '../../lib/runtime/package-root.js';
import { CPO } from '../../lib/trainer/methods/cpo.js';
import { DPO } from '../../lib/trainer/methods/dpo.js';
import { GKD } from '../../lib/trainer/methods/gkd.js';
import { KTO } from '../../lib/trainer/methods/kto.js';
import { PAIR_LOSSES } from '../../lib/trainer/methods/pair-losses.js';
import { REWARD } from '../../lib/trainer/methods/reward.js';
import type { JsonObject } from '../../types/json.js';
import { optionRows, tableRows } from '../support/option-table.js';
import { writeProgram } from './page-program.js';
import { readPage, snippetsOf } from './snippets.js';

const PAGE = 'docs/post-training.md';
const dir = mkdtempSync(join(tmpdir(), 'ds-preferences-page-'));
afterAll(() => rmSync(dir, { recursive: true }));
const golden = join(packageRoot(), 'test', 'golden', 'transformers');

test('the programs run', async () => {
  const file = join(golden, 'models', 'qwen2', 'config.json');
  const config = JSON.parse(readFileSync(file, 'utf8')) as JsonObject;
  const model = nn.models.fromConfig({ ...config, vocab_size: 1010 });
  const folder = join(dir, 'models', 'qwen2.5-0.5b-instruct');
  await model.save(folder);
  cpSync(join(golden, 'tokenizers', 'qwen2'), folder, { recursive: true });
  const page = readPage(PAGE);
  const [row] = snippetsOf(PAGE, page, ['text']);
  const rows = (row?.code ?? '').trim();
  writeFileSync(join(dir, 'pairs.jsonl'), `${rows}\n`.repeat(16));
  writeFileSync(join(dir, 'held.jsonl'), `${rows}\n`.repeat(4));
  const [program] = snippetsOf(PAGE, page, ['js']);
  const path = writeProgram(dir, program?.code ?? '');
  const { status, stdout, stderr } = spawnSync(process.execPath, [path], {
    cwd: dir,
    encoding: 'utf8',
    env: { ...process.env, CUDA_VISIBLE_DEVICES: '' },
  });
  expect([status, status === 0 ? '' : stderr]).toEqual([0, '']);
  expect(stdout).toMatch(/\d/);
  expect(existsSync(join(dir, 'tuned', 'adapter_model.safetensors'))).toBe(true);
  const [, rewards] = snippetsOf(PAGE, page, ['js']);
  const second = spawnSync(process.execPath, [writeProgram(dir, rewards?.code ?? '')], {
    cwd: dir,
    encoding: 'utf8',
    env: { ...process.env, CUDA_VISIBLE_DEVICES: '' },
  });
  expect([second.status, second.status === 0 ? '' : second.stderr]).toEqual([0, '']);
  expect(existsSync(join(dir, 'rewards', 'model.safetensors'))).toBe(true);
});

test.each(Object.entries({ dpo: DPO, kto: KTO, cpo: CPO, reward: REWARD, gkd: GKD }))(
  'the page has the declared options of %s()',
  (name, declared) => {
    const rows = tableRows(readPage(PAGE), `option of \`${name}()\``);
    expect(rows).toEqual(optionRows(declared as Parameters<typeof optionRows>[0]));
  },
);

test('the table has all losses', () => {
  const [, table = ''] = readPage(PAGE).split('### Losses\n');
  const named = [...(table.split('## ')[0] ?? '').matchAll(/^\| (`.*?) \|/gm)].flatMap(([, cell]) =>
    [...(cell as string).matchAll(/`(\w+)`/g)].map(([, name]) => name),
  );
  expect(named.filter((name) => name !== 'loss').sort()).toEqual(Object.keys(PAIR_LOSSES).sort());
});
