// Folders of MLX, and FP4 and int8 of compressed-tensors and ModelOpt, give the values of their
// formulas.
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { nn } from '../../lib/index.js';
import type { JsonObject } from '../../types/json.js';
import { bytesOf, type Changes, floats, type Stored, writeFolder } from './written-folder.js';

const [ROWS, COLUMNS] = [6, 32];
const NAME = 'model.layers.0.mlp.up_proj';
const LLAMA = {
  model_type: 'llama',
  vocab_size: 8,
  hidden_size: COLUMNS,
  intermediate_size: ROWS,
  num_hidden_layers: 1,
  num_attention_heads: 2,
  max_position_embeddings: 16,
};
const MIXTURE = {
  ...LLAMA,
  model_type: 'qwen3_moe',
  num_key_value_heads: 2,
  head_dim: 16,
  moe_intermediate_size: ROWS,
  num_experts: 3,
  num_experts_per_tok: 2,
};

let home: string;
beforeAll(() => {
  home = mkdtempSync(join(tmpdir(), 'ds-group-codes-'));
});
afterAll(() => rmSync(home, { recursive: true, force: true }));

const folderWith = (config: JsonObject, section: JsonObject, tensors: Changes): Promise<string> =>
  writeFolder(home, config, section, tensors);

async function valuesOf(dir: string, name = `${NAME}.weight`): Promise<number[]> {
  const model = await nn.models.fromPretrained(dir, { dtype: 'f32' });
  return new Map(model.namedParameters()).get(name)?.toArray() ?? [];
}

/** Codes of a matrix. */
const codesOf = (bits: number, rows = ROWS): number[] =>
  Array.from({ length: rows * COLUMNS }, (_, i) => (i * 37 + (i >> 5) + 11) % 2 ** bits);

/** The bytes of codes, the first in the lowest bits. */
function pack(codes: number[], bits: number): number[] {
  const stream = codes.map((code) => [...code.toString(2).padStart(bits, '0')].reverse().join(''));
  return (stream.join('').match(/.{8}/g) ?? []).map((text) =>
    Number.parseInt([...text].reverse().join(''), 2),
  );
}

const scaleAt = (group: number): number => (group % 5) / 64 + 0.011;
const biasAt = (group: number): number => (group % 3) / 7 - 0.3;
const each = (count: number, of: (i: number) => number): number[] =>
  Array.from({ length: count }, (_, i) => of(i));

/** The tensors of a matrix in MLX's affine form. */
function affine(bits: number, groupSize: number, lead: number[] = []): Record<string, Stored> {
  const rows = lead.reduce((a, b) => a * b, ROWS);
  const groups = [...lead, ROWS, COLUMNS / groupSize];
  const count = (rows * COLUMNS) / groupSize;
  const words = [...lead, ROWS, (COLUMNS * bits) / 32];
  return {
    weight: bytesOf('U32', pack(codesOf(bits, rows), bits), words),
    scales: floats(each(count, scaleAt), groups),
    biases: floats(each(count, biasAt), groups),
  };
}
const under = (name: string, tensors: Record<string, Stored>): Record<string, Stored> =>
  Object.fromEntries(Object.entries(tensors).map(([end, stored]) => [`${name}.${end}`, stored]));

const affineValues = (codes: number[], groupSize: number): number[] =>
  codes.map((code, i) => {
    const group = Math.floor(i / groupSize);
    return Math.fround(Math.fround(scaleAt(group)) * code + Math.fround(biasAt(group)));
  });

test.each([
  [2, 16],
  [3, 32],
  [4, 8],
  [5, 32],
  [6, 16],
  [8, 32],
])('MLX with %d bits, in groups of %d', async (bits, groupSize) => {
  const section = { quantization: { bits, group_size: groupSize } };
  const more = under(NAME, affine(bits, groupSize));
  const dir = await folderWith(LLAMA, section, { without: /up_proj/, more });
  expect(await valuesOf(dir)).toEqual(affineValues(codesOf(bits), groupSize));
});

test('a layer of an MLX folder has its own bits; embeddings may have codes', async () => {
  const own = { bits: 8, group_size: 32 };
  const scheme = { bits: 4, group_size: 16, [NAME]: own };
  const section = { quantization: scheme, quantization_config: scheme };
  const other = 'model.layers.0.mlp.gate_proj';
  const more = { ...under(NAME, affine(8, 32)), ...under(other, affine(4, 16)) };
  const dir = await folderWith(LLAMA, section, { without: /up_proj|gate_proj/, more });
  expect(await valuesOf(dir)).toEqual(affineValues(codesOf(8), 32));
  expect(await valuesOf(dir, `${other}.weight`)).toEqual(affineValues(codesOf(4), 16));
});

test('experts of an MLX folder are in one tensor', async () => {
  const section = { quantization: { bits: 4, group_size: 16 } };
  const base = 'model.layers.0.mlp.switch_mlp';
  const more = {
    ...under(`${base}.gate_proj`, affine(4, 16, [3])),
    ...under(`${base}.up_proj`, affine(4, 16, [3])),
  };
  const dir = await folderWith(MIXTURE, section, { without: /gate_proj|up_proj/, more });
  const values = await valuesOf(dir, 'model.layers.0.mlp.experts.gate_up_proj');
  const all = affineValues(codesOf(4, 3 * ROWS), 16);
  const size = ROWS * COLUMNS;
  const expected = [0, 1, 2].flatMap((expert) => {
    const matrix = all.slice(expert * size, (expert + 1) * size);
    return [...matrix, ...matrix];
  });
  expect(values).toEqual(expected);
});

const E2M1 = [0, 0.5, 1, 1.5, 2, 3, 4, 6, -0, -0.5, -1, -1.5, -2, -3, -4, -6];
/** The formula of e4m3 for codes below 127. */
function e4m3(code: number): number {
  const [exponent, mantissa] = [(code >> 3) & 15, code & 7];
  const size = exponent === 0 ? mantissa * 2 ** -9 : (1 + mantissa / 8) * 2 ** (exponent - 7);
  return code & 128 ? -size : size;
}
const fp4 = codesOf(4);
const fp4Bytes = pack(fp4, 4);
/** One-byte scales of groups. */
const small = (size: number): number[] => each((ROWS * COLUMNS) / size, (i) => 40 + (i % 30));
const ofGroups = (size: number): number[] => [ROWS, COLUMNS / size];
const GLOBAL = 37.5;

test.each<[string, JsonObject, Record<string, Stored>, (code: number, i: number) => number]>([
  [
    'MXFP4 of MLX',
    { quantization: { bits: 4, group_size: 32, mode: 'mxfp4' } },
    {
      weight: bytesOf('U32', fp4Bytes, [ROWS, COLUMNS / 8]),
      scales: bytesOf('U8', small(32), ofGroups(32)),
    },
    (code, i) => (E2M1[code] as number) * 2 ** ((small(32)[i >> 5] as number) - 127),
  ],
  [
    'NVFP4 of MLX',
    { quantization: { bits: 4, group_size: 16, mode: 'nvfp4' } },
    {
      weight: bytesOf('U32', fp4Bytes, [ROWS, COLUMNS / 8]),
      scales: bytesOf('U8', small(16), ofGroups(16)),
    },
    (code, i) => (E2M1[code] as number) * e4m3(small(16)[i >> 4] as number),
  ],
  [
    'NVFP4 of compressed-tensors',
    {
      quantization_config: {
        quant_method: 'compressed-tensors',
        format: 'nvfp4-pack-quantized',
      },
    },
    {
      weight_packed: bytesOf('U8', fp4Bytes, [ROWS, COLUMNS / 2]),
      weight_scale: bytesOf('F8_E4M3', small(16), ofGroups(16)),
      weight_global_scale: floats([GLOBAL], [1]),
      input_global_scale: floats([2], [1]),
    },
    (code, i) => (E2M1[code] as number) * Math.fround(e4m3(small(16)[i >> 4] as number) / GLOBAL),
  ],
  [
    'MXFP4 of compressed-tensors',
    {
      quantization_config: {
        quant_method: 'compressed-tensors',
        format: 'mxfp4-pack-quantized',
      },
    },
    {
      weight_packed: bytesOf('U8', fp4Bytes, [ROWS, COLUMNS / 2]),
      weight_scale: bytesOf('U8', small(32), ofGroups(32)),
    },
    (code, i) => (E2M1[code] as number) * 2 ** ((small(32)[i >> 5] as number) - 127),
  ],
  [
    'NVFP4 of ModelOpt',
    { quantization_config: { quant_method: 'modelopt', quant_algo: 'NVFP4' } },
    {
      weight: bytesOf('U8', fp4Bytes, [ROWS, COLUMNS / 2]),
      weight_scale: bytesOf('F8_E4M3', small(16), ofGroups(16)),
      weight_scale_2: floats([0.3], []),
      input_scale: floats([2], []),
    },
    (code, i) =>
      (E2M1[code] as number) * Math.fround(e4m3(small(16)[i >> 4] as number) * Math.fround(0.3)),
  ],
])('%s', async (_, section, tensors, formula) => {
  const more = under(NAME, tensors);
  const values = await valuesOf(await folderWith(LLAMA, section, { without: /up_proj/, more }));
  expect(values).toEqual(fp4.map((code, i) => Math.fround(formula(code, i))));
});

test('8-bit integers of compressed-tensors have a scale for each output', async () => {
  const codes = codesOf(8);
  const scales = each(ROWS, scaleAt);
  const more = under(NAME, {
    weight: bytesOf('I8', codes, [ROWS, COLUMNS]),
    weight_scale: floats(scales, [ROWS, 1]),
  });
  const quantization_config = { quant_method: 'compressed-tensors', format: 'int-quantized' };
  const dir = await folderWith(LLAMA, { quantization_config }, { without: /up_proj/, more });
  const expected = codes.map((code, i) => {
    const scale = Math.fround(scales[Math.floor(i / COLUMNS)] as number);
    return Math.fround((code > 127 ? code - 256 : code) * scale);
  });
  expect(await valuesOf(dir)).toEqual(expected);
});

const MLX = { quantization: { bits: 4, group_size: 16 } };
const { biases: _, ...noBiases } = affine(4, 16);
test.each<[string, JsonObject, Record<string, Stored>, RegExp]>([
  [
    '7 bits',
    { quantization: { bits: 7, group_size: 16 } },
    affine(4, 16),
    /bits: expected 2 to 6, or 8/,
  ],
  [
    'an unknown mode',
    { quantization: { bits: 4, group_size: 16, mode: 'x' } },
    affine(4, 16),
    /mode/,
  ],
  ['no biases', MLX, noBiases, /biases: expected floats \[6, 2\], got no such tensor/],
  ['scales of other groups', MLX, affine(4, 8), /scales: expected floats \[6, 2\], got \[6, 4\]/],
  [
    'other bits than stated',
    { quantization: { bits: 8, group_size: 16 } },
    affine(4, 16),
    /scales: expected floats \[6, 1\]/,
  ],
  ['no section', {}, affine(4, 16), /expected F32.*got "U32".*docs\/quantization/],
  [
    'an infinite bias',
    MLX,
    {
      ...noBiases,
      biases: floats(
        each(12, () => Number.POSITIVE_INFINITY),
        [6, 2],
      ),
    },
    /biases: expected finite numbers, got Infinity at 0/,
  ],
])('%s: refused', async (_, section, tensors, message) => {
  const more = under(NAME, tensors);
  const dir = await folderWith(LLAMA, section, { without: /up_proj/, more });
  await expect(valuesOf(dir)).rejects.toThrow(message);
});

test('a stack of many experts without codes is refused before its experts are listed', async () => {
  const [experts, none] = [1_000_000_000, new Uint8Array()];
  const more = under('model.layers.0.mlp.switch_mlp.up_proj', {
    weight: { dtype: 'U32', shape: [experts, 0, 0], bytes: none },
    scales: { dtype: 'F32', shape: [experts, 0, 0], bytes: none },
    biases: { dtype: 'F32', shape: [experts, 0, 0], bytes: none },
  });
  const dir = await folderWith(MIXTURE, MLX, { without: /up_proj/, more });
  await expect(valuesOf(dir)).rejects.toThrow(/weight: expected codes, got an empty tensor/);
});
