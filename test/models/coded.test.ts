// Folders with FP8 codes and 8 bits of bitsandbytes give the values of their formulas.
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { WeightFiles } from '../../lib/checkpoint/index.js';
import { nn } from '../../lib/index.js';

const NAME = 'model.layers.0.mlp.up_proj';
const [ROWS, COLUMNS] = [10, 8];
const CONFIG = {
  model_type: 'llama',
  vocab_size: 8,
  hidden_size: COLUMNS,
  intermediate_size: ROWS,
  num_hidden_layers: 1,
  num_attention_heads: 2,
  max_position_embeddings: 16,
};

let home: string;
beforeAll(() => {
  home = mkdtempSync(join(tmpdir(), 'ds-coded-'));
});
afterAll(() => rmSync(home, { recursive: true, force: true }));

interface Stored {
  dtype: string;
  shape: number[];
  bytes: Uint8Array;
}

const floats = (values: number[], shape: number[]): Stored => ({
  dtype: 'F32',
  shape,
  bytes: new Uint8Array(Float32Array.from(values).buffer),
});

/** Codes without NaN. */
const CODES = Uint8Array.from({ length: ROWS * COLUMNS }, (_, i) => {
  const code = (37 * i + 11) & 255;
  return (code & 127) === 127 ? 5 : code;
});

/** A folder whose up_proj has codes; `more` are the tensors beside them. */
async function folderWith(
  name: string,
  quantization_config: Record<string, unknown> | null,
  more: Record<string, Stored>,
  code = 'F8_E4M3',
): Promise<string> {
  const dir = join(home, name);
  await nn.models.fromConfig(CONFIG).save(dir);
  const files = await WeightFiles.open(dir);
  const all: Record<string, Stored> = {};
  for (const [tensor, { shape }] of files.tensors) {
    const values = await files.read(tensor);
    all[tensor] = floats(values.toArray(), [...shape]);
    values.release();
  }
  await files.close();
  all[`${NAME}.weight`] = { dtype: code, shape: [ROWS, COLUMNS], bytes: CODES };
  for (const [end, stored] of Object.entries(more)) all[`${NAME}.${end}`] = stored;
  let at = 0;
  const table = Object.entries(all).map(([tensor, { dtype, shape, bytes }]) => {
    const entry = [tensor, { dtype, shape, data_offsets: [at, at + bytes.length] }];
    at += bytes.length;
    return entry;
  });
  const json = Buffer.from(JSON.stringify(Object.fromEntries(table)));
  const head = Buffer.alloc(8);
  head.writeBigUInt64LE(BigInt(json.length));
  const data = Object.values(all).map(({ bytes }) => bytes);
  writeFileSync(join(dir, 'model.safetensors'), Buffer.concat([head, json, ...data]));
  const config = JSON.parse(readFileSync(join(dir, 'config.json'), 'utf8'));
  const declared = quantization_config && { quantization_config };
  writeFileSync(join(dir, 'config.json'), JSON.stringify({ ...config, ...declared }));
  return dir;
}

/** The formula of e4m3. */
function e4m3(code: number): number {
  const [exponent, mantissa] = [(code >> 3) & 15, code & 7];
  const size = exponent === 0 ? mantissa * 2 ** -9 : (1 + mantissa / 8) * 2 ** (exponent - 7);
  return code & 128 ? -size : size;
}

const int8 = (code: number): number => (code > 127 ? code - 256 : code);

async function valuesOf(dir: string): Promise<number[]> {
  const model = await nn.models.fromPretrained(dir, { dtype: 'f32' });
  const weight = new Map(model.namedParameters()).get(`${NAME}.weight`);
  return weight?.toArray() ?? [];
}

const scales = Array.from({ length: ROWS }, (_, i) => 0.25 + i / 16);
const FP8 = { quant_method: 'fp8', weight_block_size: [4, 3] };
const CHANNELS = { quant_method: 'compressed-tensors', format: 'float-quantized' };

test.each<
  [string, Record<string, unknown>, Record<string, Stored>, (r: number, c: number) => number]
>([
  [
    'blocks of DeepSeek',
    FP8,
    { weight_scale_inv: floats(scales.slice(0, 9), [3, 3]), input_scale: floats([2], [1]) },
    (row, column) => scales[Math.floor(row / 4) * 3 + Math.floor(column / 3)] as number,
  ],
  [
    'channels of compressed-tensors',
    CHANNELS,
    { weight_scale: floats(scales, [ROWS, 1]) },
    (row) => scales[row] as number,
  ],
  ['one scale of compressed-tensors', CHANNELS, { weight_scale: floats([0.5], [1]) }, () => 0.5],
  [
    'one scale of ModelOpt',
    { quant_method: 'modelopt', quant_algo: 'FP8' },
    { weight_scale: floats([0.75], []), input_scale: floats([2], []) },
    () => 0.75,
  ],
])('FP8 with %s', async (name, config, more, scaleAt) => {
  const values = await valuesOf(await folderWith(name, config, more));
  const expected = Array.from(CODES, (code, i) =>
    Math.fround(e4m3(code) * scaleAt(Math.floor(i / COLUMNS), i % COLUMNS)),
  );
  expect(values).toEqual(expected);
});

test('8-bit weights of bitsandbytes are read', async () => {
  const config = { quant_method: 'bitsandbytes', load_in_8bit: true };
  const more = { SCB: floats(scales, [ROWS]), weight_format: floats([0], []) };
  const values = await valuesOf(await folderWith('int8', config, more, 'I8'));
  values.forEach((value, i) => {
    const scale = scales[Math.floor(i / COLUMNS)] as number;
    expect(value).toBeCloseTo((int8(CODES[i] as number) * scale) / 127, 6);
  });
});

test.each<[string, Record<string, unknown> | null, Record<string, Stored>, RegExp]>([
  ['no scale', FP8, {}, /weight_scale_inv: expected a tensor with scales, got no such tensor/],
  [
    'scales of other sizes',
    FP8,
    { weight_scale_inv: floats(scales.slice(0, 6), [3, 2]) },
    /expected 1, 10 or 3 x 3 scales, got \[3, 2\] f32/,
  ],
  [
    'an infinite scale',
    CHANNELS,
    { weight_scale: floats([Number.POSITIVE_INFINITY], [1]) },
    /expected finite scales, got Infinity at 0/,
  ],
  [
    'a block of 0',
    { quant_method: 'fp8', weight_block_size: [0, 3] },
    { weight_scale_inv: floats(scales.slice(0, 9), [3, 3]) },
    /weight_block_size: expected two numbers/,
  ],
  ['another algorithm', { quant_method: 'modelopt', quant_algo: 'W4A8_AWQ' }, {}, /quant_algo/],
  ['no quantization_config', null, {}, /expected F32.*got "F8_E4M3".*docs\/quantization/],
])('%s is refused', async (name, config, more, message) => {
  const dir = await folderWith(`bad ${name}`, config, more);
  await expect(nn.models.fromPretrained(dir)).rejects.toThrow(message);
});

test('a code of NaN is NaN, as in a file of plain values', async () => {
  const more = { weight_scale: floats([1], [1]) };
  const dir = await folderWith('nan', CHANNELS, more);
  const path = join(dir, 'model.safetensors');
  const bytes = readFileSync(path);
  bytes[bytes.indexOf(Buffer.from(CODES))] = 127;
  writeFileSync(path, bytes);
  const values = await valuesOf(dir);
  expect(values.map(Number.isNaN)).toEqual(values.map((_, i) => i === 0));
});
