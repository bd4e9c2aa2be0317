// random_ltd: blocks that see a random part of each row.
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { checkConfig } from '../../lib/config/index.js';
import {
  type DsConfig,
  type Engine,
  initialize,
  nn,
  noGrad,
  seed,
  Tensor,
} from '../../lib/index.js';
import { chooseTokens } from '../../lib/tensor/index.js';
import { refusal } from '../support/refusal.js';
import { weightsOf } from '../trainer/tiny.js';

const [ROWS, TOKENS, VOCABULARY] = [2, 7, 31];
const sizes = { vocabSize: VOCABULARY, maxSeq: TOKENS, heads: 2, channels: 16 };

const families: [string, (layers: number, checkpointing?: boolean) => nn.models.CausalLM][] = [
  [
    'GPT-2',
    (layers, activationCheckpointing = false) =>
      new nn.models.GPT2({ ...sizes, layers, activationCheckpointing, dropout: 0.1 }),
  ],
  [
    'Llama',
    (layers, activationCheckpointing = false) =>
      new nn.models.Llama({ ...sizes, layers, hidden: 24, activationCheckpointing }),
  ],
];

const ltd = (more: object = {}, schedule: object = {}) => ({
  enabled: true,
  random_ltd_layer_id: [1, 2],
  random_ltd_layer_num: 2,
  total_layer_num: 4,
  random_ltd_schedule: {
    min_value: 3,
    max_value: TOKENS,
    schedule_type: 'fixed_linear',
    schedule_config: { require_steps: 4, seq_per_step: 1 },
    ...schedule,
  },
  ...more,
});

const config = (random_ltd: object = ltd(), more: object = {}): DsConfig =>
  ({
    train_micro_batch_size_per_gpu: ROWS,
    optimizer: { type: 'AdamW', params: { lr: 1e-2 } },
    data_efficiency: { enabled: true, data_routing: { enabled: true, random_ltd } },
    ...more,
  }) as DsConfig;

/** 3 + step, for the steps before: DeepSpeed's floor(step / 4 * (7 - 3) + 3). */
const RESERVED = [3, 4, 5, 6, 7, 7];

const open: Engine[] = [];
afterEach(() => {
  for (const engine of open.splice(0)) engine.destroy();
});

async function engineOf(input: DsConfig = config(), model: nn.Module = gpt2()): Promise<Engine> {
  const { engine } = await initialize({ model, config: input, device: 'cpu' });
  open.push(engine);
  return engine;
}

function gpt2(): nn.models.CausalLM {
  seed(5);
  return families[0]?.[1](4) as nn.models.CausalLM;
}

function whole(make: (row: number, at: number) => number): Tensor {
  const values = Array.from({ length: ROWS * TOKENS }, (_, i) =>
    make(Math.floor(i / TOKENS), i % TOKENS),
  );
  return Tensor.from(Int32Array.from(values), { shape: [ROWS, TOKENS] });
}

const batch = (step: number) => ({
  tokens: whole((row, at) => (3 * at * at + 7 * row + step) % VOCABULARY),
  targets: whole((row, at) => (5 * at + row + step) % VOCABULARY),
});

function train(engine: Engine, steps: number): number[] {
  return Array.from({ length: steps }, () => {
    const { tokens, targets } = batch(engine.globalSteps);
    const loss = engine.forward(tokens, targets);
    engine.backward(loss);
    engine.step();
    return loss.item();
  });
}

test('tokens are drawn for each draw and row, in rising order, with equal frequency', () => {
  seed(3);
  const like = whole(() => 0);
  const draw = { rows: 300, tokens: 5, draws: 2, chosen: 2 };
  const drawn = chooseTokens(draw, like);
  expect([drawn.shape, drawn.dtype]).toEqual([[2, 300, 2], 'i32']);
  const values = Array.from(drawn.toArray(), Number);
  const counts = new Map<string, number>();
  for (let i = 0; i < values.length; i += 2) {
    const [a, b] = values.slice(i, i + 2) as [number, number];
    expect(a < b && b < 5 && a >= 0).toBe(true);
    counts.set(`${a}${b}`, (counts.get(`${a}${b}`) ?? 0) + 1);
  }
  expect(counts.size).toBe(10);
  for (const count of counts.values()) expect(Math.abs(count - 60)).toBeLessThan(35);
  expect(values.slice(0, 600)).not.toEqual(values.slice(600));
});

describe.each(families)('%s', (_, build) => {
  const makeModel = (layers: number, checkpointing = false) => {
    seed(11);
    return build(layers, checkpointing);
  };
  const layerTokens = { layers: [0], reserved: 4 };

  /** With one block, chosen tokens are a text at their positions, and the others pass no block. */
  test('sees chosen tokens at their positions, in their documents, and no others', () => {
    const model = makeModel(1).eval();
    const { tokens } = batch(0);
    const documents = whole((row, at) => (at + row > 3 ? 1 : 0));
    const positions = whole((row, at) => (at + row > 3 ? at + row - 4 : at));
    const weights = Tensor.from(
      Float32Array.from({ length: ROWS * TOKENS * VOCABULARY }, (_v, i) => ((i * 37) % 11) - 5),
      { shape: [ROWS, TOKENS, VOCABULARY] },
    );
    seed(9);
    const logits = model.call(tokens, null, { documents, layerTokens });
    logits.mul(weights).sum().backward();
    const got = model.parameters().map((parameter) => Array.from(parameter.grad?.toArray() ?? []));
    for (const parameter of model.parameters()) parameter.grad = null;

    seed(9);
    const draw = { rows: ROWS, tokens: TOKENS, draws: 1, chosen: 4 };
    const chosen = chooseTokens(draw, tokens).reshape([ROWS, 4]);
    const some = (all: Tensor): Tensor => all.gather(1, chosen);
    const places = { documents: some(documents), positions: some(positions) };
    const inside = model.call(some(tokens), null, places);
    const outside = model.call(tokens, null, { documents, layerFactors: [0] });
    const index = chosen.reshape([ROWS, 4, 1]).expand([ROWS, 4, VOCABULARY]).contiguous();
    const expected = outside.scatter(1, index, inside);
    expectClose(logits, expected);
    expected.mul(weights).sum().backward();
    model.parameters().forEach((parameter, i) => {
      expectNear(got[i] as number[], Array.from(parameter.grad?.toArray() ?? []), 2e-4);
    });
  });

  test('with room for all tokens is the plain model', () => {
    const { tokens, targets } = batch(1);
    const losses = [{ layerTokens: { layers: [0, 1], reserved: TOKENS } }, {}].map((inputs) => {
      const model = makeModel(2);
      seed(2);
      return model.call(tokens, targets, inputs).item();
    });
    expect(losses[0]).toBe(losses[1]);
  });

  test('has the same gradients with activation checkpointing', () => {
    const { tokens, targets } = batch(2);
    const runs = [false, true].map((checkpointing) => {
      const model = makeModel(3, checkpointing);
      seed(2);
      const inputs = { layerTokens: { layers: [0, 2], reserved: 3 }, layerFactors: [1, 0, 2] };
      const loss = model.call(tokens, targets, inputs);
      loss.backward();
      return [
        loss.item(),
        ...model.parameters().map((parameter) => [...(parameter.grad?.toArray() ?? [])]),
      ];
    });
    expect(runs[0]).toEqual(runs[1]);
  });

  test('refuses invalid layers and lengths', async () => {
    const model = makeModel(2);
    const { tokens } = batch(0);
    for (const wrong of [
      { layers: [2], reserved: 3 },
      { layers: [0, 0], reserved: 3 },
      { layers: [0], reserved: 0 },
      { layers: 'all', reserved: 3 },
      { layers: new Array(1), reserved: 3 },
      { layers: [0], reserved: 3, seed: 1 },
      0,
    ]) {
      expect(
        await refusal(() => model.call(tokens, null, { layerTokens: wrong } as never)),
      ).toMatchObject({
        code: 'DS_ARGUMENT',
        op: expect.stringContaining('layerTokens'),
      });
    }
  });
});

function expectNear(got: number[], expected: number[], tolerance: number): void {
  expect(got.length).toBe(expected.length);
  const off = Math.max(0, ...got.map((value, i) => Math.abs(value - (expected[i] as number))));
  expect(off).toBeLessThan(tolerance);
}

function expectClose(got: Tensor, expected: Tensor): void {
  expectNear(Array.from(got.toArray(), Number), Array.from(expected.toArray(), Number), 1e-5);
}

test('a window of neighbours is refused', async () => {
  const model = new nn.models.Mistral({ ...sizes, layers: 1, hidden: 24, window: 3 });
  const inputs = { layerTokens: { layers: [0], reserved: 4 } };
  expect(await refusal(() => model.call(batch(0).tokens, null, inputs))).toMatchObject({
    code: 'DS_ARGUMENT',
    op: 'layerTokens',
  });
});

test.each(families)('a pattern of blocks in %s is refused', async (_, build) => {
  const model = build(2);
  nn.sparsify(model, { mode: 'fixed', block: 16, attention: 'unidirectional' });
  const inputs = { layerTokens: { layers: [1], reserved: 4 } };
  expect(await refusal(() => model.call(batch(0).tokens, null, inputs))).toMatchObject({
    code: 'DS_ARGUMENT',
    op: 'layerTokens',
    hint: expect.stringContaining('nn.sparsify(model, null)'),
  });
});

test('an engine that trains nothing gives layers all tokens', async () => {
  const { optimizer: _, ...given } = config(ltd(), { zero_optimization: { stage: 3 } });
  const engine = await engineOf(given, families[1]?.[1](4)); // Without dropout.
  const logits = noGrad(() => engine.forward(batch(0).tokens)).toArray();
  engine.eval();
  expect(noGrad(() => engine.forward(batch(0).tokens)).toArray()).toEqual(logits);
});

test('invalid inputs and tokens are refused', async () => {
  const engine = await engineOf();
  const { tokens, targets } = batch(0);
  for (const reported of [5, null, tokens, { layerTokens: { layers: [0], reserved: 2 } }]) {
    expect(await refusal(() => engine.forward(tokens, targets, reported))).toMatchObject({
      code: 'DS_ARGUMENT',
      op: expect.stringMatching(/^GPT2 inputs/),
    });
  }
});

test('an engine trains as with explicit tokens, and evaluates with all', async () => {
  const engine = await engineOf();
  const byHand = await engineOf(config({ enabled: false }));
  for (const [step, reserved] of RESERVED.entries()) {
    seed(step);
    const [loss] = train(engine, 1);
    seed(step);
    const { tokens, targets } = batch(step);
    const layerTokens = { layers: [1, 2], reserved };
    const other = byHand.forward(tokens, targets, { layerTokens });
    byHand.backward(other);
    byHand.step();
    expect(other.item()).toBe(loss);
  }
  engine.synchronize();
  byHand.synchronize();
  expect(weightsOf(engine.module)).toEqual(weightsOf(byHand.module));
  engine.eval();
  byHand.eval();
  const { tokens } = batch(0);
  expect(noGrad(() => engine.forward(tokens)).toArray()).toEqual(
    noGrad(() => byHand.forward(tokens)).toArray(),
  );
});

test('a checkpoint continues with the same tokens', async () => {
  const dir = mkdtempSync(join(tmpdir(), 'ds-token-drop-'));
  try {
    const one = await engineOf();
    seed(1);
    train(one, 2);
    await one.saveCheckpoint(dir);
    const losses = train(one, 3);
    const other = await engineOf();
    await other.loadCheckpoint(dir);
    expect(train(other, 3)).toEqual(losses);
    expect(weightsOf(other.module)).toEqual(weightsOf(one.module));
  } finally {
    rmSync(dir, { recursive: true, force: true });
  }
});

test('a model without dropTokens() and a pipeline are refused', async () => {
  class Own extends nn.Module {
    readonly table = new nn.Embedding(VOCABULARY, 8);
    override forward(tokens: Tensor): Tensor {
      return this.table.call(tokens).mean();
    }
  }
  const engine = await engineOf(config(), new Own());
  const section = 'data_efficiency.data_routing.random_ltd';
  expect(await refusal(() => engine.forward(batch(0).tokens))).toMatchObject({
    code: 'DS_CONFIG',
    op: `engine.forward, ${section}`,
  });
  Object.assign(engine.module, { dropTokens: 'by a name' });
  expect((await refusal(() => engine.forward(batch(0).tokens))).got).toBe('a Own without it');
  expect(await refusal(() => engineOf(config(ltd(), { pipeline: { stages: 1 } })))).toMatchObject({
    code: 'DS_CONFIG',
    op: section,
  });
});

describe('the section', () => {
  test('names layers of the model, or is refused before training', async () => {
    const more = { random_ltd_layer_id: [1, 2, 4], random_ltd_layer_num: 3, total_layer_num: 8 };
    expect(await refusal(() => engineOf(config(ltd(more))))).toMatchObject({
      code: 'DS_CONFIG',
      op: 'data_efficiency.data_routing.random_ltd.random_ltd_layer_id',
      expected: 'numbers from 0 to 3, because the model has 4 layers',
    });
  });

  test.each([
    [8, 1],
    [4, 0],
    [null, 0],
  ])('for a model of %j layers prints %i notices on one of four ranks', async (total, notices) => {
    const spy = jest.spyOn(process, 'emitWarning').mockImplementation(() => {});
    await engineOf(config(ltd({ total_layer_num: total })));
    const reported = spy.mock.calls.map(([text]) => String(text));
    spy.mockRestore();
    const localTexts = reported.filter((text) =>
      text.includes('total_layer_num is 8, and the model has 4'),
    );
    expect([reported.length, localTexts.length]).toEqual([notices, notices]);
  });

  test.each<[string, object, object]>([
    ['random_ltd_layer_id', { random_ltd_layer_id: null }, {}],
    ['random_ltd_layer_id', { random_ltd_layer_num: 3 }, {}],
    ['random_ltd_layer_id', { random_ltd_layer_id: [1, 1] }, {}],
    ['random_ltd_layer_id', { random_ltd_layer_id: [1, 4] }, {}],
    ['model_type', { model_type: 'encoder' }, {}],
    ['layer_token_lr_schedule', { layer_token_lr_schedule: { enabled: true } }, {}],
    ['min_value', {}, { min_value: null }],
    ['max_value', {}, { max_value: 2 }],
    ['min_value', {}, { schedule_config: { require_steps: 4, seq_per_step: 4 } }],
    ['require_steps', {}, { schedule_config: { seq_per_step: 1 } }],
    ['sequence_parallel_size', {}, {}],
    ['sparse_attention', {}, {}],
  ])('is refused for its %s', (key, more, schedule) => {
    const others = {
      sequence_parallel_size: { sequence_parallel_size: 2 },
      sparse_attention: { sparse_attention: { mode: 'dense' } },
    }[key];
    const { errors } = checkConfig(config(ltd(more, schedule), others), { worldSize: 2 });
    expect(errors.map(({ path }) => path.split('.').at(-1))).toContain(key);
  });

  test('is accepted in the form of DeepSpeed', () => {
    const more = {
      model_mask_name: 'attention_mask',
      model_type: 'decoder',
      hidden_state_order: 'seq_batch_dim',
    };
    expect(checkConfig(config(ltd(more)), { worldSize: 1 }).errors).toEqual([]);
  });
});
