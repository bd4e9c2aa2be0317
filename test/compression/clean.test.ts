// Tests the model after compression ends, quantized inputs, and layers of a deeper model.
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import {
  initCompression,
  initialize,
  nn,
  noGrad,
  redundancyClean,
  seed,
  Tensor,
} from '../../lib/index.js';
import { thrownBy } from '../support/refusal.js';
import { compressModel, configOf, everything, type Section, small, train } from './models.js';

const x = Tensor.from(
  Array.from({ length: 24 }, (_, i) => Math.cos(1 + i)),
  { shape: [2, 2, 6] },
).keep();

const of = (technique: string, shared: object, group: object): Section => ({
  [technique]: {
    shared_parameters: { enabled: true, schedule_offset: 0, ...shared },
    different_groups: { g: group },
  },
});

const outputs = (model: nn.Module, input: Tensor): number[] =>
  noGrad(() => (model.call(input) as Tensor).toArray());

const closely = (got: readonly number[], expected: readonly number[]): void => {
  expect(got.length).toBe(expected.length);
  got.forEach((value, i) => {
    expect(value).toBeCloseTo(expected[i] as number, 5);
  });
};

test('a trained model computes the same without compression, under the original names', async () => {
  const section: Section = { ...everything };
  delete section.weight_quantization;
  const engine = await compressModel(section);
  train(engine, 5);
  const model = engine.module;
  engine.destroy();
  const index = Tensor.from(Int32Array.from([1, 4, 6]), { shape: [3] });
  const before = outputs(model, index);
  expect(redundancyClean(model, configOf(section))).toBe(model);
  expect(outputs(model, index)).toEqual(before);
  expect(Object.keys(model.stateDict())).toEqual(Object.keys(small().stateDict()));
  const zeros = (model as ReturnType<typeof small>).blocks[0]?.weight.toArray() as number[];
  expect(zeros.filter((value) => value === 0).length).toBeGreaterThanOrEqual(6 * 4);
  expect(thrownBy(() => redundancyClean(model, configOf(section))).code).toBe('DS_ARGUMENT');
});

test('weights end at target_bits', () => {
  seed(4);
  const localLayer = new nn.Linear(6, 4);
  const weight = localLayer.weight.toArray();
  const section = of('weight_quantization', {}, { params: { start_bits: 8, target_bits: 3 } });
  const model = initCompression(new nn.Sequential(localLayer), configOf(section));
  redundancyClean(model, configOf(section));
  expect(model.children()).toEqual([localLayer]);
  const step = (2 * Math.max(...weight.map(Math.abs))) / 8;
  const codes = localLayer.weight.toArray().map((value) => value / step);
  for (const [i, code] of codes.entries()) {
    expect(code).toBeCloseTo(
      Math.min(3, Math.max(-4, Math.round((weight[i] as number) / step))),
      4,
    );
  }
});

test('row pruning removes rows, and the columns that read them', () => {
  seed(4);
  const build = () => new nn.Sequential(new nn.LinearGelu(6, 9), new nn.Linear(9, 5));
  const section = of(
    'row_pruning',
    { method: 'topk' },
    { params: { dense_ratio: 0.4 }, modules: ['^0'], related_modules: [['^1']] },
  );
  const model = initCompression(build(), configOf(section));
  const before = outputs(model, x);
  redundancyClean(model, configOf(section));
  const shapes = [...model.namedParameters()].map(([name, { shape }]) => `${name} ${shape}`);
  expect(shapes).toEqual(['0.weight 4,6', '0.bias 4', '1.weight 5,4', '1.bias 5']);
  expect(model.children()[0]).toBeInstanceOf(nn.LinearGelu);
  closely(outputs(model, x), before);
});

test('a token table is rounded separately, and finally also for a tied head', () => {
  seed(4);
  const sizes = { vocabSize: 31, maxSeq: 8, heads: 2, channels: 16, layers: 1 };
  const model = new nn.models.GPT2(sizes);
  const { lm_head: head, transformer } = model;
  const weight = transformer.wte.weight.toArray();
  const section = of(
    'weight_quantization',
    {},
    { params: { start_bits: 3, target_bits: 3 }, modules: ['wte'] },
  );
  initCompression(model, configOf(section));
  const rows = Tensor.from(
    Int32Array.from({ length: 31 }, (_, i) => i),
    { shape: [31] },
  );
  const rounded = outputs(transformer.wte, rows);
  expect(new Set(rounded).size).toBeLessThanOrEqual(8);
  expect((head as { weight: Tensor }).weight.toArray()).toEqual(weight);
  redundancyClean(model, configOf(section));
  expect((head as { weight: Tensor }).weight.toArray()).toEqual(rounded);
});

test('a folder is read back once the model is clean', async () => {
  seed(4);
  const sizes = { vocabSize: 31, maxSeq: 8, heads: 2, channels: 16, layers: 1 };
  const model = new nn.models.GPT2(sizes);
  const config = configOf(
    of(
      'sparse_pruning',
      { method: 'topk' },
      { params: { dense_ratio: 0.5 }, modules: ['mlp.c_fc'] },
    ),
  );
  initCompression(model, config);
  const dir = mkdtempSync(join(tmpdir(), 'ds-clean-'));
  try {
    const [early, late] = [join(dir, 'early'), join(dir, 'late')];
    await model.save(early);
    await expect(nn.models.GPT2.fromPretrained(early)).rejects.toThrow('c_fc.sparse_mask_scores');
    await redundancyClean(model, config).save(late);
    const read = (await nn.models.GPT2.fromPretrained(late)).stateDict();
    const name = 'transformer.h.0.mlp.c_fc.weight';
    const weight = read[name]?.toArray() ?? [];
    expect(weight).toEqual(model.stateDict()[name]?.toArray());
    expect(weight.filter((value) => value === 0)).toHaveLength(weight.length / 2);
  } finally {
    rmSync(dir, { recursive: true, force: true });
  }
});

/** Attention with the width of its projections: heads of two channels. */
class Attention extends nn.Module {
  readonly query = new nn.Linear(6, 6);
  readonly key = new nn.Linear(6, 6);
  readonly value = new nn.Linear(6, 6);
  readonly out = new nn.Linear(6, 6);

  override forward(input: Tensor): Tensor {
    const heads = (layer: nn.Linear): Tensor => {
      const y = layer.call(input);
      return y.reshape(y.size(0), y.size(1), y.size(2) / 2, 2).transpose(1, 2);
    };
    const scores = heads(this.query).matmul(heads(this.key).transpose(-2, -1));
    const mixed = scores.softmax(-1).matmul(heads(this.value)).transpose(1, 2);
    return this.out.call(mixed.reshape(mixed.size(0), mixed.size(1), mixed.size(2) * 2));
  }
}

test('head pruning removes heads, with their rows of queries, keys and values', () => {
  seed(4);
  const model = new Attention();
  const section = of(
    'head_pruning',
    { num_heads: 3 },
    {
      params: { dense_ratio: 0.5 },
      modules: ['out'],
      related_modules: [['query', 'key', 'value']],
    },
  );
  initCompression(model, configOf(section));
  const before = outputs(model, x);
  redundancyClean(model, configOf(section));
  expect([model.query, model.out].map(({ weight }) => weight.shape)).toEqual([
    [4, 6],
    [6, 4],
  ]);
  closely(outputs(model, x), before);
});

test('related_modules that fit nothing are refused before training, and change no layer', () => {
  const cut = (related: string) =>
    of(
      'row_pruning',
      {},
      { params: { dense_ratio: 0.5 }, modules: ['blocks.0'], related_modules: [[related]] },
    );
  for (const [related, text] of [
    ['out', '9 inputs, as blocks.0 has outputs'],
    ['blocks', '1 linear layers'],
    ['nowhere', '0 layers that match "nowhere"'],
  ] as const) {
    const model = small();
    const before = model.children();
    const error = thrownBy(() => initCompression(model, configOf(cut(related))));
    expect(error).toMatchObject({ code: 'DS_CONFIG' });
    expect(error.message).toContain(text);
    expect(model.children()).toEqual(before);
  }
});

test('layers pair up in the order of the model, in any order of the groups', () => {
  seed(4);
  const model = new nn.Sequential(
    new nn.LinearGelu(6, 8),
    new nn.Linear(8, 6),
    new nn.LinearGelu(6, 8),
    new nn.Linear(8, 6),
  );
  const inBits = (start_bits: number, at: string) => ({
    params: { start_bits, target_bits: start_bits },
    modules: [at],
  });
  const section = {
    weight_quantization: {
      shared_parameters: { enabled: true },
      different_groups: { late: inBits(8, '^2'), early: inBits(6, '^0') },
    },
    ...of(
      'row_pruning',
      { method: 'topk' },
      { params: { dense_ratio: 0.5 }, modules: ['0|2'], related_modules: [['1|3']] },
    ),
  };
  initCompression(model, configOf(section));
  const before = outputs(model, x);
  redundancyClean(model, configOf(section));
  closely(outputs(model, x), before);
});

test('a GPT-2 with pruned MLPs is saved with their width, and loads into one of the same width', async () => {
  const section = of(
    'row_pruning',
    {},
    {
      params: { dense_ratio: 0.5 },
      modules: ['mlp.c_fc'],
      related_modules: [['mlp.c_proj']],
    },
  );
  const sizes = { vocabSize: 11, maxSeq: 8, layers: 2, heads: 2, channels: 8 };
  const cut = (from: number) => {
    seed(from);
    const model = initCompression(new nn.models.GPT2(sizes), configOf(section));
    return redundancyClean(model, configOf(section)) as nn.models.GPT2;
  };
  const model = cut(4);
  const folder = mkdtempSync(join(tmpdir(), 'ds-cut-'));
  try {
    await model.save(join(folder, 'cut'));
    const config = JSON.parse(readFileSync(join(folder, 'cut', 'config.json'), 'utf8'));
    expect(config).toMatchObject({ n_embd: 8, n_inner: 16 });
    await expect(nn.models.fromPretrained(join(folder, 'cut'))).rejects.toThrow(/n_inner.*32.*16/);
    const other = cut(5);
    await nn.loadWeights(other, join(folder, 'cut'));
    const tokens = Tensor.from(Int32Array.from([3, 1, 4]), { shape: [1, 3] });
    expect(outputs(other, tokens)).toEqual(outputs(model, tokens));
    expect(new nn.models.GPT2(sizes).describe().config.n_inner).toBeNull();
  } finally {
    rmSync(folder, { recursive: true });
  }
});

test('reading a folder that was saved before redundancyClean() is an error', async () => {
  const sizes = { vocabSize: 11, maxSeq: 8, layers: 1, heads: 2, channels: 8 };
  const folder = mkdtempSync(join(tmpdir(), 'ds-unclean-'));
  try {
    for (const [technique, method] of [
      ['sparse_pruning', 'l1'],
      ['sparse_pruning', 'topk'],
      ['row_pruning', 'l1'],
      ['row_pruning', 'topk'],
      ['head_pruning', 'topk'],
    ] as const) {
      const heads = technique === 'head_pruning' ? { num_heads: 2 } : {};
      const group = { params: { dense_ratio: 0.5 }, modules: ['attn.c_proj'] };
      const section = of(technique, { method, ...heads }, group);
      const model = initCompression(new nn.models.GPT2(sizes), configOf(section));
      const path = join(folder, `${technique}-${method}`);
      await model.save(path);
      const reading = nn.models.fromPretrained(path);
      await expect(reading).rejects.toThrow(/unexpected .*save it after redundancyClean\(\)/);
    }
  } finally {
    rmSync(folder, { recursive: true });
  }
});

test('a weight of two layers is rounded once; freezing and eval() are kept', () => {
  seed(4);
  const model = new nn.Sequential(
    new nn.Linear(6, 6),
    new nn.Linear(6, 6),
    new nn.Linear(6, 8),
    new nn.Linear(8, 4),
  );
  const [first, second, third] = model.children() as [nn.Linear, nn.Linear, nn.Linear];
  Object.assign(second, { weight: first.weight });
  third.weight.requiresGrad = false;
  const section = {
    ...of(
      'weight_quantization',
      { quantization_type: 'asymmetric' },
      { params: { start_bits: 3, target_bits: 3 } },
    ),
    ...of(
      'row_pruning',
      {},
      { params: { dense_ratio: 0.5 }, modules: ['2'], related_modules: [['3']] },
    ),
  };
  initCompression(model, configOf(section)).eval();
  const before = outputs(model, x);
  redundancyClean(model, configOf(section));
  closely(outputs(model, x), before);
  expect(model.modules().map(({ training }) => training)).toEqual(Array(5).fill(false));
  expect([...model.namedParameters()].map(([, { requiresGrad }]) => requiresGrad)).toEqual([
    true,
    true,
    true,
    false,
    true,
    true,
    true,
  ]);
});

test('a layer with two masks is refused', () => {
  class Gated extends nn.Module {
    readonly gate = new nn.Linear(6, 8);
    readonly up = new nn.Linear(6, 8);
    readonly down = new nn.Linear(8, 6);

    override forward(input: Tensor): Tensor {
      return this.down.call(this.gate.call(input).mul(this.up.call(input)));
    }
  }
  seed(4);
  const section = of(
    'row_pruning',
    {},
    {
      params: { dense_ratio: 0.5 },
      modules: ['gate', 'up'],
      related_modules: [['down'], ['down']],
    },
  );
  const model = initCompression(new Gated(), configOf(section));
  const before = outputs(model, x);
  const error = thrownBy(() => redundancyClean(model, configOf(section)));
  expect(error).toMatchObject({
    code: 'DS_CONFIG',
    op: expect.stringContaining('g.related_modules, down'),
  });
  expect(outputs(model, x)).toEqual(before);
});

test('inputs have a range for each token, gradients pass, and they stay quantized', () => {
  seed(4);
  const localLayer = new nn.Linear(6, 4);
  const section = of('activation_quantization', {}, { params: { bits: 4 } });
  const model = initCompression(new nn.Sequential(localLayer), configOf(section));
  const rounded = Array.from({ length: 4 }, (_, row) => {
    const values = x.toArray().slice(6 * row, 6 * row + 6);
    const step = (2 * Math.max(...values.map(Math.abs))) / 16;
    return values.map((value) => Math.min(7, Math.max(-8, Math.round(value / step))) * step);
  });
  const expected = outputs(localLayer, Tensor.from(rounded.flat(), { shape: [2, 2, 6] }));
  closely(outputs(model, x), expected);
  const input = x.clone();
  input.requiresGrad = true;
  (model.call(input) as Tensor).sum().backward();
  const columns = Array.from({ length: 6 }, (_, k) =>
    [0, 1, 2, 3].reduce((sum, o) => sum + (localLayer.weight.toArray()[6 * o + k] as number), 0),
  );
  closely(
    input.grad?.toArray() ?? [],
    [0, 1, 2, 3].flatMap(() => columns),
  );
  redundancyClean(model, configOf(section));
  closely(outputs(model, x), expected);
});

test('a model starts as some layers of a deeper one', async () => {
  const sizes = { vocabSize: 31, maxSeq: 8, heads: 2, channels: 16 };
  seed(1);
  const teacher = new nn.models.GPT2({ ...sizes, layers: 4 });
  const section: Section = {
    layer_reduction: {
      enabled: true,
      keep_number_layer: 2,
      module_name_prefix: 'transformer.h',
      teacher_layer: [1, 3],
      other_module_name: ['transformer.wte', 'transformer.ln_f'],
    },
  };
  const model = new nn.models.GPT2({ ...sizes, layers: 2 });
  expect(thrownBy(() => initCompression(model, configOf(section))).code).toBe('DS_ARGUMENT');
  initCompression(model, configOf(section), teacher);
  const [student, taught] = [model.stateDict(), teacher.stateDict()];
  const pairs = {
    'h.0.attn.c_attn.weight': 'h.1',
    'h.1.mlp.c_fc.bias': 'h.3',
    'wte.weight': 'wte',
  };
  for (const [name, from] of Object.entries(pairs)) {
    const there = name.replace(/^h\.\d|^wte/, from);
    expect(student[`transformer.${name}`]?.toArray()).toEqual(
      taught[`transformer.${there}`]?.toArray(),
    );
  }
  expect(student['transformer.wpe.weight']?.toArray()).not.toEqual(
    taught['transformer.wpe.weight']?.toArray(),
  );
  const config = configOf(section);
  const start = (untaught: nn.Module) => initialize({ model: untaught, config, device: 'cpu' });
  await expect(start(new nn.models.GPT2({ ...sizes, layers: 2 }))).rejects.toMatchObject({
    code: 'DS_CONFIG',
    hint: expect.stringContaining('initCompression'),
  });
  expect(thrownBy(() => initCompression(model, config, teacher)).code).toBe('DS_ARGUMENT');
  const { engine } = await start(model);
  engine.destroy();
  const before = model.stateDict();
  expect(redundancyClean(model, config).stateDict()).toEqual(before);
  expect(redundancyClean(model, configOf({}))).toBe(model);
  const wrong = { ...section.layer_reduction, module_name_prefix: 'bert.encoder' };
  const error = thrownBy(() =>
    initCompression(model, configOf({ layer_reduction: wrong }), teacher),
  );
  expect(error).toMatchObject({ code: 'DS_CONFIG', hint: expect.stringContaining('transformer') });
});
