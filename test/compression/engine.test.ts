// Tests compressed models with an engine: start steps of techniques, ZeRO stages, ranks,
// checkpoints, and errors.
import { checkConfig } from '../../lib/config/index.js';
import { requireWholeLayers } from '../../lib/engine/setup/compression.js';
import {
  type DsConfig,
  type Engine,
  initCompression,
  initialize,
  nn,
  PipelineModule,
  seed,
  Tensor,
} from '../../lib/index.js';
import { refusal } from '../support/refusal.js';
import { compressModel, configOf, everything, type Section, small, train } from './models.js';

const zero = (stage: 0 | 3): DsConfig => ({ zero_optimization: { stage } });

const open: Engine[] = [];
afterEach(() => {
  for (const engine of open.splice(0)) engine.destroy();
});

async function engineOf(section: Section, more: DsConfig = {}): Promise<Engine> {
  const engine = await compressModel(section, more);
  open.push(engine);
  return engine;
}

test('a technique begins after its steps, and nothing changes before', async () => {
  const offset = (schedule_offset: number): Section => ({
    sparse_pruning: {
      shared_parameters: { enabled: true, schedule_offset },
      different_groups: { all: { params: { dense_ratio: 0.3 } } },
    },
  });
  const { engine } = await initialize({
    model: small(),
    config: configOf(undefined),
    device: 'cpu',
  });
  open.push(engine);
  const plain = train(engine, 5);
  const late = train(await engineOf(offset(3)), 5);
  expect(late.slice(0, 3)).toEqual(plain.slice(0, 3));
  expect(late[3]).not.toBe(plain[3]);
  const never = train(await engineOf(offset(1000)), 5);
  expect(never).toEqual(plain);
});

const gpt2 = (activationCheckpointing: boolean) => {
  seed(2);
  const sizes = { vocabSize: 31, maxSeq: 8, layers: 2, heads: 2, channels: 16 };
  return new nn.models.GPT2({ ...sizes, activationCheckpointing });
};

const llama = () => {
  seed(2);
  const sizes = { vocabSize: 31, layers: 2, heads: 4, kvHeads: 2, channels: 16, hidden: 24 };
  return new nn.models.Llama({ ...sizes, maxSeq: 8 } as never);
};

const inBlocks: Section = {
  weight_quantization: {
    shared_parameters: { enabled: true, rounding: 'stochastic', quantization_type: 'asymmetric' },
    different_groups: { all: { params: { start_bits: 8, target_bits: 4 } } },
  },
  sparse_pruning: {
    shared_parameters: { enabled: true, method: 'topk', schedule_offset: 2 },
    different_groups: { mlp: { params: { dense_ratio: 0.5 }, modules: ['mlp'] } },
  },
};

async function lossesOf(model: nn.Module, more: DsConfig = {}): Promise<number[]> {
  const config = configOf(inBlocks, more);
  const { engine } = await initialize({
    model: initCompression(model, config),
    config,
    device: 'cpu',
  });
  open.push(engine);
  const tokens = Tensor.from(
    Int32Array.from({ length: 32 }, (_, i) => (i * i) % 31),
    {
      shape: [4, 8],
    },
  );
  return Array.from({ length: 6 }, () => {
    const loss = engine.forward<Tensor>(tokens, tokens);
    engine.backward(loss);
    engine.step();
    return loss.item();
  });
}

test('models of this library learn in few bits, and recomputation draws the same noise', async () => {
  const losses = await lossesOf(gpt2(false));
  expect(losses.at(-1)).toBeLessThan(losses[0] as number);
  expect(await lossesOf(gpt2(true))).toEqual(losses);
  const half = await lossesOf(llama(), { bf16: { enabled: true }, ...zero(3) });
  expect(half.at(-1)).toBeLessThan(half[0] as number);
});

const one = (technique: string, shared: object, group: object): Section => ({
  [technique]: { shared_parameters: { enabled: true, ...shared }, different_groups: { g: group } },
});
const ratio = { params: { dense_ratio: 0.5 } };
const bits = (start_bits: number, target_bits: number) => ({ params: { start_bits, target_bits } });

test.each<[Section, string, string]>([
  [{ row_pruning: { shared_parameters: { enabled: true } } }, 'different_groups', 'got none'],
  [one('row_pruning', {}, { ...ratio, modules: ['('] }), 'row_pruning', 'regular expressions'],
  [one('row_pruning', {}, { ...ratio, related_modules: [[], []] }), 'related_modules', '1 lists'],
  [one('row_pruning', {}, { params: {} }), 'params.dense_ratio', 'a value'],
  [one('head_pruning', {}, ratio), 'num_heads', 'got none'],
  [one('head_pruning', { method: 'l1', num_heads: 2 }, ratio), 'method', 'does not compute it'],
  [one('weight_quantization', {}, bits(4, 8)), 'start_bits', 'at least target_bits'],
  [
    one('weight_quantization', { quantization_type: 'asymmetric' }, bits(8, 2)),
    'target_bits',
    'quantization_type to "symmetric"',
  ],
  [one('sparse_pruning', { method: 'snip_momentum' }, ratio), 'method', 'neural_compressor'],
  [one('channel_pruning', {}, ratio), 'enabled', 'expected false, got true'],
])('%j is refused', (section, path, text) => {
  const { errors } = checkConfig(configOf(section), { worldSize: 1 });
  expect(errors.map(({ op }) => op).join()).toContain(path);
  expect(errors.map(({ message }) => message).join()).toContain(text);
});

test.each([
  ['activation_quantization', { range_calibration: 'static' }],
  ['sparse_pruning', { method: 'snip_momentum' }],
  ['head_pruning', { method: 'l1' }],
])('unsupported settings of %s are accepted if the technique is off', (technique, shared) => {
  const section = { [technique]: { shared_parameters: { enabled: false, ...shared } } };
  expect(checkConfig(configOf(section), { worldSize: 1 }).errors).toEqual([]);
});

test.each([
  [{ teacher_layer: [] }, []],
  [{ teacher_layer: [1, 3], module_name_prefix: 'h' }, []],
  [{ teacher_layer: [1, 3] }, ['module_name_prefix']],
  [{ keep_number_layer: 3, teacher_layer: [1, 3], module_name_prefix: 'h' }, ['teacher_layer']],
])('layers that begin as those of a teacher are named: %j', (fields, keys) => {
  const section = { layer_reduction: { enabled: true, ...fields } };
  const { errors } = checkConfig(configOf(section), { worldSize: 1 });
  const path = 'compression_training.layer_reduction';
  expect(errors.map(({ op }) => op)).toEqual(keys.map((key) => `${path}.${key}`));
});

test('settings that quantize_weight_in_forward ignores give a notice', () => {
  const section = one(
    'weight_quantization',
    { quantize_weight_in_forward: true, rounding: 'stochastic' },
    bits(8, 4),
  );
  const { notices } = checkConfig(configOf(section), { worldSize: 1 });
  expect(notices.map(({ text }) => text).join()).toContain('start_bits, rounding have no effect');
});

test('groups that do not fit a model are refused, and leave it as it was', async () => {
  const model = small();
  const names = Array.from(model.namedModules(), ([, module]) => module);
  const cases: [Section, string, string][] = [
    [one('row_pruning', {}, { ...ratio, modules: ['attention'] }), 'g.modules', 'Names are table'],
    [one('row_pruning', {}, { ...ratio, modules: ['table'] }), 'table', 'a linear layer'],
    [one('row_pruning', {}, { ...ratio, modules: ['out', 'o'] }), 'g.modules', 'got out, which'],
    [one('head_pruning', { num_heads: 4 }, { ...ratio, modules: ['out'] }), 'num_heads', 'divisor'],
    [one('weight_quantization', { quantize_groups: 7 }, bits(8, 8)), 'blocks.0', 'divide 54'],
  ];
  for (const [section, place, text] of cases) {
    const error = await refusal(() => initCompression(model, configOf(section)));
    expect(error.op).toContain(place);
    expect(error.message).toContain(text);
  }
  expect(Array.from(model.namedModules(), ([, module]) => module)).toEqual(names);
  const direct = one('sparse_pruning', {}, { ...ratio, modules: ['wpe'] });
  expect(await refusal(() => initCompression(gpt2(false), configOf(direct)))).toMatchObject({
    code: 'DS_CONFIG',
  });
});

test('layers that would not compute compressed are refused', async () => {
  class Doubled extends nn.Linear {
    override forward(x: Tensor): Tensor {
      return super.forward(x).mul(2);
    }
  }
  class Around extends nn.Module {
    readonly inner = llama();

    override forward(tokens: Tensor): Tensor {
      return this.inner.call(tokens) as Tensor;
    }
  }
  const cases: [nn.Module, string, string][] = [
    [new nn.Sequential(new Doubled(4, 4)), '*', '0, a Doubled with its own forward'],
    [new Around(), 'lm_head', 'inner.lm_head; the model reads its weight directly'],
    [new nn.Sequential(new nn.Embedding(4, 4)), '*', 'got "*"'],
  ];
  for (const [model, pattern, text] of cases) {
    const section = one('sparse_pruning', {}, { ...ratio, modules: pattern });
    const error = await refusal(() => initCompression(model, configOf(section)));
    expect(error).toMatchObject({ code: 'DS_CONFIG', op: expect.stringContaining('g.modules') });
    expect(error.message).toContain(text);
  }
});

test('layers that ranks share and stages of a pipeline are refused', async () => {
  const section = one('row_pruning', {}, ratio);
  const shared = configOf(section, { tensor_parallel: { autotp_size: 2 } });
  const model = initCompression(llama(), shared);
  expect(await refusal(() => initialize({ model, config: shared, device: 'cpu' }))).toMatchObject({
    code: 'DS_CONFIG',
    op: 'compression_training',
    got: '2',
    hint: 'Layers divided over ranks are not compressed yet.',
  });
  const stages = new PipelineModule({
    layers: [new nn.Linear(4, 4), new nn.Linear(4, 4)],
    lossFn: (outputs: Tensor) => outputs.mean(),
  });
  const config = configOf(section);
  initCompression(stages, config);
  const error = await refusal(() => initialize({ model: stages, config, device: 'cpu' }));
  expect(error.hint).toBe('Stages of a pipeline are not compressed yet.');
});

test('initialize() requires the section that initCompression() received', async () => {
  const model = small();
  const start = (section: Section | undefined) =>
    initialize({ model, config: configOf(section), device: 'cpu' });
  const early = await refusal(() => start(everything));
  expect(early).toMatchObject({ code: 'DS_CONFIG', op: 'compression_training' });
  expect(early.hint).toContain('initCompression(model, config)');
  initCompression(model, configOf(everything));
  expect((await refusal(() => start(undefined))).got).toBe('a different section');
  expect((await refusal(() => initCompression(model, configOf(everything)))).code).toBe(
    'DS_ARGUMENT',
  );
  const { engine } = await start(everything);
  open.push(engine);
  const late = await refusal(() => initCompression(model, configOf(everything)));
  expect(late.code).toBe('DS_ARGUMENT');
});

test('tensor parallelism is refused with compressed layers only', () => {
  const check = (model: nn.Module, autotp_size: number, tp_size: number): void =>
    requireWholeLayers({
      module: model,
      config: { tensor_parallel: { autotp_size, tensor_parallel: { tp_size } } } as never,
    });
  const compressedModel = initCompression(small(), configOf(everything));
  const message = /expected tensor_parallel\.autotp_size 0 or 1, got 2\. Layers divided/;
  expect(() => check(compressedModel, 2, 1)).toThrow(message);
  expect(() => check(compressedModel, 0, 2)).toThrow(message);
  expect(() => check(compressedModel, 0, 1)).not.toThrow();
  expect(() => check(small(), 2, 2)).not.toThrow();
});
