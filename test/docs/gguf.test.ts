// The program of docs/gguf.md runs on a tiny file, and its tables name what the code reads.
import { spawnSync } from 'node:child_process';
import { existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { BLOCK_TYPES } from '../../lib/checkpoint/gguf/blocks.js';
import { nn } from '../../lib/index.js';
import { ARCHITECTURES } from '../../lib/models/gguf/architectures.js';
import { packageRoot } from '../../lib/runtime/package-root.js';
import type { JsonObject } from '../../types/json.js';
import { readPage, snippetsOf } from './snippets.js';

const PAGE = 'docs/gguf.md';
const dir = mkdtempSync(join(tmpdir(), 'ds-gguf-page-'));
afterAll(() => rmSync(dir, { recursive: true }));
const golden = join(packageRoot(), 'test', 'golden', 'transformers');

test('the program runs', async () => {
  const config = JSON.parse(
    readFileSync(join(golden, 'models', 'qwen3', 'config.json'), 'utf8'),
  ) as JsonObject;
  const model = nn.models.fromConfig({ ...config, vocab_size: 1010 });
  const tokenizer = join(golden, 'tokenizers', 'qwen2');
  await nn.saveGguf(model, join(dir, 'qwen3-0.6b-q8_0.gguf'), { tokenizer });
  const [program] = snippetsOf(PAGE, readPage(PAGE), ['js']);
  const library = JSON.stringify(join(packageRoot(), 'lib', 'index.ts'));
  const body = (program?.code ?? '').replace(
    /import (\{.*\}) from '@ds\/native';/,
    `const $1 = require(${library});`,
  );
  const hooks = ['run-typescript.cjs', 'threads.ts'].map((name) =>
    join(packageRoot(), 'test', 'support', name),
  );
  const all = hooks.map((hook) => `require(${JSON.stringify(hook)});`).join('');
  const file = join(dir, 'program.cjs');
  writeFileSync(file, `${all}(async () => {${body}})();`);
  const { status, stderr } = spawnSync(process.execPath, [file], { cwd: dir, encoding: 'utf8' });
  expect([status, stderr]).toEqual([0, '']);
  expect(existsSync(join(dir, 'copy.gguf'))).toBe(true);
});

test('the tables are complete', () => {
  const page = readPage(PAGE);
  const rows = [...BLOCK_TYPES.values()].map(({ name }) => name);
  const types = /\| types of weights \| (.*) \|/.exec(page)?.[1]?.split(', ') ?? [];
  expect(types.sort()).toEqual(rows.sort());
  const line = /\| architectures \| (.*) \|/.exec(page)?.[1] ?? '';
  const named = [...line.matchAll(/`(\w+)`/g)].map(([, name]) => name);
  expect(named).toEqual(ARCHITECTURES.map(({ name }) => name));
});
