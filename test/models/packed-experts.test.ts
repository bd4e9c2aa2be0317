// Mixtures whose experts GPTQ, AWQ and compressed-tensors have packed give the values of the
// formats' formulas.
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { WeightFiles } from '../../lib/checkpoint/index.js';
import { nn } from '../../lib/index.js';
import type { JsonObject } from '../../types/json.js';
import { refusal } from '../support/refusal.js';
import { floats, type Stored, words, writeFolder } from './written-folder.js';

const [WIDTH, CHANNELS, GROUP] = [24, 32, 8];
const SIZES = {
  vocab_size: 8,
  hidden_size: CHANNELS,
  intermediate_size: WIDTH,
  num_hidden_layers: 1,
  num_attention_heads: 2,
  num_key_value_heads: 2,
  max_position_embeddings: 16,
};
const QWEN = {
  ...SIZES,
  model_type: 'qwen3_moe',
  head_dim: 16,
  moe_intermediate_size: WIDTH,
  num_experts: 3,
  num_experts_per_tok: 2,
};
const MIXTRAL = { ...SIZES, model_type: 'mixtral', num_local_experts: 5, num_experts_per_tok: 2 };
/** The predictor's layer of a GLM 4.5 folder is not read. */
const GLM = {
  ...QWEN,
  model_type: 'glm4_moe',
  n_routed_experts: 3,
  n_shared_experts: 1,
  first_k_dense_replace: 0,
  num_nextn_predict_layers: 1,
  n_group: 1,
  topk_group: 1,
  norm_topk_prob: true,
  routed_scaling_factor: 1,
};

let home: string;
beforeAll(() => {
  home = mkdtempSync(join(tmpdir(), 'ds-packed-experts-'));
});
afterAll(() => rmSync(home, { recursive: true, force: true }));

/** Codes of a matrix and the numbers of its groups, before a format stores them. */
interface Matrix {
  outputs: number;
  inputs: number;
  code(output: number, input: number): number;
  zero(output: number, group: number): number;
  scale(output: number, group: number): number;
  /** The group of an input. */
  groupOf(input: number): number;
}

/** How a tool stores a matrix. */
interface Format {
  section: JsonObject;
  bits: 4 | 8;
  /** Whether groups are adjacent inputs. */
  hasOrder?: boolean;
  isSymmetric?: boolean;
  store(matrix: Matrix, format: Format): Record<string, Stored>;
}

function createMatrix(outputs: number, inputs: number, seed: number, format: Format): Matrix {
  const { bits, hasOrder = false, isSymmetric = false } = format;
  const groups = inputs / GROUP;
  return {
    outputs,
    inputs,
    code: (o, i) => (o * 37 + i * 11 + seed * 5 + (o >> 2)) % 2 ** bits,
    zero: (o, g) => (isSymmetric ? 2 ** (bits - 1) : 1 + ((o * 3 + g + seed) % (2 ** bits - 1))),
    scale: (o, g) => Math.fround(((o + 2 * g + seed) % 7) / 64 + 0.013),
    groupOf: (i) => (hasOrder ? (i * 5 + seed) % groups : Math.floor(i / GROUP)),
  };
}

/** [outputs, inputs], row-major. */
const valuesOf = ({ outputs, inputs, code, zero, scale, groupOf }: Matrix): number[] =>
  Array.from({ length: outputs * inputs }, (_, at) => {
    const [o, i] = [Math.floor(at / inputs), at % inputs];
    const group = groupOf(i);
    return Math.fround((code(o, i) - zero(o, group)) * scale(o, group));
  });

/** Packs the columns of [rows, columns] into words; `place` orders the codes of a word. */
function pack(
  [rows, columns]: [number, number],
  bits: number,
  of: (row: number, column: number) => number,
  place: (j: number) => number = (j) => j,
): Stored {
  const perWord = 32 / bits;
  const width = Math.ceil(columns / perWord);
  const out = new Uint32Array(rows * width);
  for (let row = 0; row < rows; row++) {
    for (let column = 0; column < columns; column++) {
      const at = row * width + Math.floor(column / perWord);
      out[at] = (out[at] as number) | (of(row, column) << (bits * place(column % perWord)));
    }
  }
  return words(out, [rows, width]);
}

/** The transpose of a packed matrix. */
function turned({ shape, bytes }: Stored): Stored {
  const [rows, columns] = shape as [number, number];
  const from = new Uint32Array(bytes.buffer);
  const out = from.map((_, at) => from[(at % rows) * columns + Math.floor(at / rows)] as number);
  return words(out, [columns, rows]);
}

const scalesAcross = ({ outputs, inputs, scale }: Matrix): Stored => {
  const groups = inputs / GROUP;
  const values = Array.from({ length: groups * outputs }, (_, at) =>
    scale(at % outputs, Math.floor(at / outputs)),
  );
  return floats(values, [groups, outputs]);
};

function storeGptq(matrix: Matrix, { bits, hasOrder = false }: Format): Record<string, Stored> {
  const { outputs, inputs, code, zero, groupOf } = matrix;
  return {
    qweight: turned(pack([outputs, inputs], bits, code)),
    qzeros: pack([inputs / GROUP, outputs], bits, (g, o) => zero(o, g) - 1),
    scales: scalesAcross(matrix),
    ...(hasOrder && {
      g_idx: words(
        Uint32Array.from({ length: inputs }, (_, i) => groupOf(i)),
        [inputs],
      ),
    }),
  };
}

function storeAwq(matrix: Matrix): Record<string, Stored> {
  const { outputs, inputs, code, zero } = matrix;
  const place = (j: number): number => [0, 4, 1, 5, 2, 6, 3, 7][j] as number;
  return {
    qweight: pack([inputs, outputs], 4, (i, o) => code(o, i), place),
    qzeros: pack([inputs / GROUP, outputs], 4, (g, o) => zero(o, g), place),
    scales: scalesAcross(matrix),
  };
}

function storeCompressed(matrix: Matrix, format: Format): Record<string, Stored> {
  const { outputs, inputs, code, zero, scale, groupOf } = matrix;
  const { bits, isSymmetric = false, hasOrder = false } = format;
  const groups = inputs / GROUP;
  const scales = Array.from({ length: outputs * groups }, (_, at) =>
    scale(Math.floor(at / groups), at % groups),
  );
  return {
    weight_packed: pack([outputs, inputs], bits, code),
    weight_scale: floats(scales, [outputs, groups]),
    weight_shape: {
      dtype: 'I64',
      shape: [2],
      bytes: new Uint8Array(BigInt64Array.of(BigInt(outputs), BigInt(inputs)).buffer),
    },
    ...(!isSymmetric && {
      weight_zero_point: turned(pack([groups, outputs], bits, (g, o) => zero(o, g))),
    }),
    ...(hasOrder && {
      weight_g_idx: words(
        Uint32Array.from({ length: inputs }, (_, i) => groupOf(i)),
        [inputs],
      ),
    }),
  };
}

const compressed = (bits: 4 | 8, symmetric: boolean): JsonObject => ({
  quant_method: 'compressed-tensors',
  format: 'pack-quantized',
  quantization_status: 'compressed',
  config_groups: {
    group_0: {
      targets: ['Linear'],
      weights: { num_bits: bits, type: 'int', symmetric, strategy: 'group', group_size: GROUP },
    },
  },
  ignore: ['lm_head', 're:.*mlp.gate$'],
});
const gptq = (bits: 4 | 8, more: JsonObject = {}): JsonObject => ({
  quant_method: 'gptq',
  bits,
  group_size: GROUP,
  checkpoint_format: 'gptq',
  ...more,
});

const FORMATS = {
  GPTQ: {
    section: gptq(4, { dynamic: { lm_head: {}, '-:.*attn.*': {} } }),
    bits: 4,
    store: storeGptq,
  },
  'GPTQ in activation order': {
    section: gptq(4, { desc_act: true }),
    bits: 4,
    hasOrder: true,
    store: storeGptq,
  },
  'GPTQ of 8 bits': { section: gptq(8), bits: 8, store: storeGptq },
  AutoRound: {
    section: { quant_method: 'auto-round', bits: 4, group_size: GROUP, data_type: 'int' },
    bits: 4,
    store: storeGptq,
  },
  'AutoRound in the layout of AWQ': {
    section: {
      quant_method: 'intel/auto-round',
      bits: 4,
      group_size: GROUP,
      packing_format: 'auto_round:auto_awq',
    },
    bits: 4,
    store: storeAwq,
  },
  AWQ: {
    section: { quant_method: 'awq', bits: 4, group_size: GROUP, version: 'gemm' },
    bits: 4,
    store: storeAwq,
  },
  'compressed-tensors': {
    section: compressed(4, true),
    bits: 4,
    isSymmetric: true,
    store: storeCompressed,
  },
  'compressed-tensors with zero points': {
    section: compressed(4, false),
    bits: 4,
    store: storeCompressed,
  },
  'compressed-tensors in activation order': {
    section: compressed(4, true),
    bits: 4,
    isSymmetric: true,
    hasOrder: true,
    store: storeCompressed,
  },
} satisfies Record<string, Format>;

/** Names of an expert's matrices in the files, and the experts. */
interface Names {
  experts: number;
  /** The block of layer 0. */
  block: string;
  ends: readonly [gate: string, up: string, down: string];
}
const QWEN_NAMES: Names = {
  experts: 3,
  block: 'model.layers.0.mlp',
  ends: ['gate_proj', 'up_proj', 'down_proj'],
};
const MIXTRAL_NAMES: Names = {
  experts: 5,
  block: 'model.layers.0.block_sparse_moe',
  ends: ['w1', 'w3', 'w2'],
};

/** The tensors of all experts, and their values by the names of plain matrices. */
function packExperts(format: Format, { experts, block, ends }: Names) {
  const more: Record<string, Stored> = {};
  const expected = new Map<string, number[]>();
  for (let expert = 0; expert < experts; expert++) {
    ends.forEach((end, at) => {
      const [outputs, inputs] = at === 2 ? [CHANNELS, WIDTH] : [WIDTH, CHANNELS];
      const matrix = createMatrix(outputs, inputs, 3 * expert + at, format);
      const name = `${block}.experts.${expert}.${end}`;
      for (const [part, stored] of Object.entries(format.store(matrix, format))) {
        more[`${name}.${part}`] = stored;
      }
      expected.set(`${name}.weight`, valuesOf(matrix));
    });
  }
  return { more, expected };
}

/** The model of a folder saves these values. */
async function requireSaved(dir: string, expected: Map<string, number[]>): Promise<JsonObject> {
  const saved = join(dir, 'saved');
  await (await nn.models.fromPretrained(dir, { dtype: 'f32' })).save(saved);
  const files = await WeightFiles.open(saved);
  for (const [name, values] of expected) {
    const read = await files.read(name);
    expect([name, read.toArray()]).toEqual([name, values]);
    read.release();
  }
  await files.close();
  return JSON.parse(readFileSync(join(saved, 'config.json'), 'utf8'));
}

test.each(Object.entries<Format>(FORMATS))('%s', async (_, format) => {
  const { more, expected } = packExperts(format, QWEN_NAMES);
  const section = { quantization_config: format.section };
  const dir = await writeFolder(home, QWEN, section, { without: /\.experts\./, more });
  const config = await requireSaved(dir, expected);
  expect(config).not.toHaveProperty('quantization_config');
});

test.each(['GPTQ', 'AWQ', 'compressed-tensors'] as const)(
  '%s under the names of Mixtral',
  async (name) => {
    const format = FORMATS[name];
    const { more, expected } = packExperts(format, MIXTRAL_NAMES);
    const section = { quantization_config: format.section };
    const dir = await writeFolder(home, MIXTRAL, section, { without: /\.experts\./, more });
    await requireSaved(dir, expected);
  },
);

test('gate and up of an expert may be one matrix, and layers may be packed too', async () => {
  const format = FORMATS.GPTQ;
  const { more, expected } = packExperts(format, QWEN_NAMES);
  const tensors: Record<string, Stored> = Object.fromEntries(
    Object.entries(more).filter(([name]) => !/(gate|up)_proj/.test(name)),
  );
  for (let expert = 0; expert < 3; expert++) {
    const base = `model.layers.0.mlp.experts.${expert}`;
    const matrix = createMatrix(2 * WIDTH, CHANNELS, expert, format);
    for (const [part, stored] of Object.entries(storeGptq(matrix, format))) {
      tensors[`${base}.gate_up_proj.${part}`] = stored;
    }
    const values = valuesOf(matrix);
    expected.set(`${base}.gate_proj.weight`, values.slice(0, WIDTH * CHANNELS));
    expected.set(`${base}.up_proj.weight`, values.slice(WIDTH * CHANNELS));
  }
  const query = 'model.layers.0.self_attn.q_proj';
  const matrix = createMatrix(CHANNELS, CHANNELS, 9, format);
  for (const [part, stored] of Object.entries(storeGptq(matrix, format))) {
    tensors[`${query}.${part}`] = stored;
  }
  const section = { quantization_config: format.section };
  const without = /\.experts\.|q_proj\./;
  const dir = await writeFolder(home, QWEN, section, { without, more: tensors });
  const config = await requireSaved(dir, expected);
  // The saved folder has packed queries only: other programs must not expect packed experts.
  expect(config.quantization_config).toMatchObject({
    ignore: expect.arrayContaining(['model.layers.0.mlp.experts']),
  });
  const model = await nn.models.fromPretrained(join(dir, 'saved'), { dtype: 'f32' });
  const layer = new Map(model.namedModules()).get(query) as nn.QuantizedLinear;
  expect(layer.values('f32').toArray()).toEqual(valuesOf(matrix));
});

test('AutoRound may give a layer other bits', async () => {
  const { more, expected } = packExperts(FORMATS.AutoRound, QWEN_NAMES);
  const name = 'model.layers.0.mlp.experts.1.up_proj';
  const wide = { ...FORMATS.AutoRound, bits: 8 } as const;
  const matrix = createMatrix(WIDTH, CHANNELS, 5, wide);
  for (const [part, stored] of Object.entries(storeGptq(matrix, wide))) {
    more[`${name}.${part}`] = stored;
  }
  expected.set(`${name}.weight`, valuesOf(matrix));
  const extra_config = {
    [name]: { bits: 8, group_size: GROUP },
    'model.layers.0.mlp.gate': { bits: 16 },
  };
  const section = { quantization_config: { ...FORMATS.AutoRound.section, extra_config } };
  const dir = await writeFolder(home, QWEN, section, { without: /\.experts\./, more });
  await requireSaved(dir, expected);
});

test('packed routers are read, and layers of a predictor are left', async () => {
  const format = FORMATS.AWQ;
  const { more, expected } = packExperts(format, QWEN_NAMES);
  const router = createMatrix(8, CHANNELS, 4, format);
  const [inLayer, behind] = [0, 1].map((layer) =>
    Object.entries(storeAwq(router)).map(([part, stored]) => [
      `model.layers.${layer}.mlp.gate.${part}`,
      stored,
    ]),
  );
  const section = { quantization_config: format.section };
  const glm = await writeFolder(home, GLM, section, {
    without: /\.experts\./,
    more: { ...more, ...Object.fromEntries(behind as [string, Stored][]) },
  });
  await requireSaved(glm, expected);
  const wide = { ...QWEN, num_experts: 8 };
  const all = packExperts(format, { ...QWEN_NAMES, experts: 8 });
  const qwen = await writeFolder(home, wide, section, {
    without: /\.experts\.|mlp\.gate\./,
    more: { ...all.more, ...Object.fromEntries(inLayer as [string, Stored][]) },
  });
  await requireSaved(qwen, new Map([['model.layers.0.mlp.gate.weight', valuesOf(router)]]));
});

test.each<[string, (more: Record<string, Stored>) => void, RegExp]>([
  [
    'scales of other groups',
    (more) => {
      more['model.layers.0.mlp.experts.1.up_proj.scales'] = floats(Array(48).fill(1), [2, 24]);
    },
    /experts\.1\.up_proj\.scales: expected \[4, 24\] floating, got \[2, 24\]/,
  ],
  [
    'an expert that the model lacks',
    (more) => {
      for (const part of ['qweight', 'qzeros', 'scales']) {
        const name = `model.layers.0.mlp.experts`;
        more[`${name}.3.up_proj.${part}`] = more[`${name}.2.up_proj.${part}`] as Stored;
      }
    },
    /experts\.3\.up_proj\.qweight: expected a linear layer of the model, or a matrix of its experts/,
  ],
  [
    'an expert without codes',
    (more) => {
      for (const part of ['qweight', 'qzeros', 'scales']) {
        delete more[`model.layers.0.mlp.experts.2.up_proj.${part}`];
      }
    },
    /experts\.2\.up_proj\.weight: expected codes, as in the other parts of this tensor/,
  ],
])('%s: refused', async (_, change, message) => {
  const format = FORMATS.AWQ;
  const { more } = packExperts(format, QWEN_NAMES);
  change(more);
  const section = { quantization_config: format.section };
  const dir = await writeFolder(home, QWEN, section, { without: /\.experts\./, more });
  const { code, message: text } = await refusal(() => nn.models.fromPretrained(dir));
  expect(code).toBe('DS_CHECKPOINT');
  expect(text).toMatch(message);
});
