// Folders of mixtures whose experts are FP8 codes, as DeepSeek V3 and Qwen3-MoE-FP8 publish them.
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { WeightFiles } from '../../lib/checkpoint/index.js';
import { nn } from '../../lib/index.js';
import { refusal } from '../support/refusal.js';
import { folderOf } from './family-rows.js';

let home: string;
beforeAll(() => {
  home = mkdtempSync(join(tmpdir(), 'ds-coded-experts-'));
});
afterAll(() => rmSync(home, { recursive: true, force: true }));

const BLOCK = [5, 6] as const;

/** The values that a folder has for a matrix, by its name. */
type Decoded = Map<string, { shape: readonly number[]; values: number[] }>;

/** The formula of e4m3 for codes below 127. */
function e4m3(code: number): number {
  const [exponent, mantissa] = [code >> 3, code & 7];
  return exponent === 0 ? mantissa * 2 ** -9 : (1 + mantissa / 8) * 2 ** (exponent - 7);
}

/** A copy of a golden folder with codes for the matrices that `has` chooses. */
async function folderWith(family: string, has: (name: string) => boolean) {
  const dir = mkdtempSync(join(home, `${family}-`));
  const files = await WeightFiles.open(folderOf(family));
  const table: Record<string, object> = {};
  const data: Uint8Array[] = [];
  const decoded: Decoded = new Map();
  let at = 0;
  const add = (name: string, dtype: string, shape: readonly number[], bytes: Uint8Array): void => {
    table[name] = { dtype, shape, data_offsets: [at, at + bytes.length] };
    at += bytes.length;
    data.push(bytes);
  };
  for (const [name, { shape }] of files.tensors) {
    const values = await files.read(name);
    const list = values.toArray();
    values.release();
    if (!has(name)) {
      add(name, 'F32', shape, new Uint8Array(Float32Array.from(list).buffer));
      continue;
    }
    const [rows, columns] = shape as [number, number];
    const codes = Uint8Array.from({ length: rows * columns }, (_, i) => (i * 29 + at) % 127);
    const [high, width] = [Math.ceil(rows / BLOCK[0]), Math.ceil(columns / BLOCK[1])];
    const scales = Float32Array.from({ length: high * width }, (_, i) => 2 ** -8 * (1 + (i % 7)));
    const value = (_: unknown, i: number): number => {
      const [row, column] = [Math.floor(i / columns), i % columns];
      const scale = scales[Math.floor(row / BLOCK[0]) * width + Math.floor(column / BLOCK[1])];
      return Math.fround(e4m3(codes[i] as number) * (scale as number));
    };
    decoded.set(name, { shape, values: Array.from(codes, value) });
    add(name, 'F8_E4M3', shape, codes);
    add(`${name}_scale_inv`, 'F32', [high, width], new Uint8Array(scales.buffer));
  }
  await files.close();
  const json = Buffer.from(JSON.stringify(table));
  const head = Buffer.alloc(8);
  head.writeBigUInt64LE(BigInt(json.length));
  writeFileSync(join(dir, 'model.safetensors'), Buffer.concat([head, json, ...data]));
  const config = JSON.parse(readFileSync(join(folderOf(family), 'config.json'), 'utf8'));
  const quantization_config = { quant_method: 'fp8', weight_block_size: [...BLOCK] };
  writeFileSync(join(dir, 'config.json'), JSON.stringify({ ...config, quantization_config }));
  return { dir, decoded };
}

const isExpert = (name: string): boolean => /\.experts\.\d+\.\w+\.weight$/.test(name);
const isMatrix = (name: string): boolean =>
  isExpert(name) || /(_proj|shared_experts\.\w+)\.weight$/.test(name);

test.each(['qwen3-moe', 'deepseek-v3', 'mixtral'])(
  '%s: experts have the values of the formula',
  async (family) => {
    const { dir, decoded } = await folderWith(family, family === 'mixtral' ? isExpert : isMatrix);
    const model = await nn.models.fromPretrained(dir, { dtype: 'f32' });
    // A saved folder has the plain values under the names of the files.
    const saved = join(dir, 'saved');
    await model.save(saved);
    const files = await WeightFiles.open(saved);
    expect(decoded.size).toBeGreaterThan(8);
    for (const [name, { values }] of decoded) {
      const read = await files.read(name);
      expect([name, read.toArray()]).toEqual([name, values]);
      read.release();
    }
    await files.close();
  },
);

test('the error of partly coded experts names them', async () => {
  const { dir } = await folderWith(
    'qwen3-moe',
    (name) => isExpert(name) && !name.includes('experts.2.'),
  );
  const { code, message } = await refusal(() => nn.models.fromPretrained(dir));
  expect(code).toBe('DS_CHECKPOINT');
  expect(message).toMatch(
    /experts\.2\.gate_proj\.weight: expected codes, as in the other parts of this tensor/,
  );
});
