// The program of docs/gguf.md runs on a tiny file, and its tables name what the code reads.
import { spawnSync } from 'node:child_process';
import { existsSync, mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { BLOCK_TYPES, type BlockType, typeId } from '../../lib/checkpoint/gguf/blocks.js';
import { type PackedType, packValues } from '../../lib/checkpoint/gguf/quantize.js';
import { nn } from '../../lib/index.js';
import { ARCHITECTURES } from '../../lib/models/gguf/architectures.js';
import { packageRoot } from '../../lib/runtime/package-root.js';
import type { JsonObject } from '../../types/json.js';
import { seededRandom } from '../support/random.js';
import { writeProgram } from './page-program.js';
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
  const file = writeProgram(dir, program?.code ?? '');
  const { status, stderr } = spawnSync(process.execPath, [file], { cwd: dir, encoding: 'utf8' });
  expect([status, stderr]).toEqual([0, '']);
  expect(existsSync(join(dir, 'copy.gguf'))).toBe(true);
});

test('the errors of types are those of normally distributed numbers', () => {
  const page = readPage(PAGE);
  const random = seededRandom(11);
  const values = Float32Array.from({ length: 256 * 200 }, () => {
    const [u, v] = [1 - random(), random()];
    return 0.02 * Math.sqrt(-2 * Math.log(u)) * Math.cos(2 * Math.PI * v);
  });
  const errorOf = (type: PackedType): number => {
    const { unpack, values: size } = BLOCK_TYPES.get(typeId(type)) as BlockType;
    const back = new Float32Array(values.length);
    unpack(packValues(type, values), values.length / size, back);
    const sum = (of: (i: number) => number): number =>
      values.reduce((a, _, i) => a + of(i) ** 2, 0);
    const off = sum((i) => (back[i] as number) - (values[i] as number));
    return 100 * Math.sqrt(off / sum((i) => values[i] as number));
  };
  const said = (pattern: RegExp): number => Number(pattern.exec(page)?.[1]);
  const rows: readonly [PackedType, RegExp][] = [
    ['F16', /`F16` \| 16 \| ([\d.]+) %/],
    ['Q8_0', /`Q8_0` \| 8\.5 \| ([\d.]+) %/],
    ['Q4_K', /([\d.]+) % in Q4_K/],
    ['Q6_K', /([\d.]+) % in Q6_K/],
  ];
  for (const [type, pattern] of rows) expect(errorOf(type) / said(pattern)).toBeCloseTo(1, 1);
});

test('the tables are complete', () => {
  const page = readPage(PAGE);
  const rows = [...BLOCK_TYPES.values()].map(({ name }) => name);
  const cells = [...page.matchAll(/\| .*types of weights \| (.*) \|/g)];
  const types = cells.flatMap(([, cell = '']) => cell.split(', '));
  expect(types.sort()).toEqual(rows.sort());
  const lines = [...page.matchAll(/\| .*architectures \| (.*) \|/g)];
  const named = lines.flatMap(([, cell = '']) => [...cell.matchAll(/`([\w-]+)`/g)]);
  const known = ARCHITECTURES.map(({ name }) => name);
  expect(named.map(([, name]) => name).sort()).toEqual([...new Set(known)].sort());
});
