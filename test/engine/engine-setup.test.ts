// Tests the refusals and settings of initialize() by section: precision, sequences, layers, FP8,
// and the needs of optimizers.
import { Mesh } from '../../lib/comm/mesh.js';
import { type MeshOptions, MeshShape } from '../../lib/comm/mesh-shape.js';
import { ProcessGroup } from '../../lib/comm/process-group.js';
import { resolveConfig } from '../../lib/config/index.js';
import { ReleaseStack } from '../../lib/engine/release-stack.js';
import { requireFp8Gpu, useFp8 } from '../../lib/engine/setup/fp8.js';
import { NoOptimizer } from '../../lib/engine/setup/optimizer.js';
import {
  findCutParameter,
  layoutFor,
  requireElementwise,
  requireExchange,
  requireUncutState,
  requireWholeParameters,
  sumsGradients,
} from '../../lib/engine/setup/optimizer-needs.js';
import {
  bufferDType,
  buildScaler,
  gradientDType,
  quantizeWeights,
  weightDType,
} from '../../lib/engine/setup/precision.js';
import { requireSequence, splitSequence } from '../../lib/engine/setup/sequence-parallel.js';
import { isCutOver, splitLayers, tensorSize } from '../../lib/engine/setup/tensor-parallel.js';
import { ZeroGroups } from '../../lib/engine/zero-groups.js';
import { type DsConfig, nn, optim, type Tensor } from '../../lib/index.js';
import { perBlock, perElement, perParameter } from '../../lib/optim/declared-state.js';
import { wholeRegion } from '../../lib/runtime/box.js';
import { FROZEN } from '../../lib/zero/unit.js';
import { refusal, thrownBy } from '../support/refusal.js';

const configOf = (more: DsConfig = {}, worldSize = 1) =>
  resolveConfig({ train_micro_batch_size_per_gpu: 1, ...more }, { worldSize });

const jobOf = (ranks: number, mesh: MeshOptions = {}) =>
  ({
    rank: 0,
    worldSize: ranks,
    world: { rank: 0, size: ranks },
    mesh: new Mesh(MeshShape.over(ranks, mesh), { rank: 0, size: ranks } as never, null as never),
  }) as never;

const linear = () => new nn.Linear(16, 32);
const adam = (params = linear().parameters()) => new optim.AdamW(params, { lr: 0.1 });
const lamb = () => new optim.Lamb(linear().parameters(), { lr: 0.1 });
const onebit = () => ({
  name: 'OneBitAdam',
  passOf() {},
  groups: [{}],
  declareState: () => ({}),
  sumsGradients: (step: number) => step <= 3,
});

describe('precision', () => {
  test.each<[more: DsConfig, found: [string, string, string | undefined]]>([
    [{}, ['f32', 'f32', undefined]],
    [{ bf16: { enabled: true } }, ['bf16', 'bf16', undefined]],
    [{ fp16: { enabled: true } }, ['f16', 'f16', undefined]],
    [
      { bf16: { enabled: true }, data_types: { grad_accum_dtype: 'fp32', buffer_dtype: 'fp16' } },
      ['bf16', 'f32', 'f16'],
    ],
  ] as never)('%j has weights, gradients and buffers in %j', (more, found) => {
    const config = configOf(more);
    expect([weightDType(config), gradientDType(config), bufferDType(config)]).toEqual(found);
  });

  test('the scale of losses is 1, fixed, or follows overflows', () => {
    const scaler = (fp16: DsConfig['fp16']) => buildScaler(configOf({ fp16 }));
    expect(scaler({ enabled: false, loss_scale: 8 })).toMatchObject({ scale: 1, dynamic: false });
    expect(scaler({ enabled: true, loss_scale: 8 })).toMatchObject({ scale: 8, dynamic: false });
    const dynamic = scaler({
      enabled: true,
      initial_scale_power: 5,
      min_loss_scale: 16,
      hysteresis: 1,
    });
    expect(dynamic).toMatchObject({ scale: 32, dynamic: true });
    dynamic.update(true);
    expect(dynamic.scale).toBe(16);
    expect(thrownBy(() => dynamic.update(true)).code).toBe('DS_NONFINITE');
  });
});

describe('weight_quantization.quantized_initialization', () => {
  const groupsOf = (section: object | null, optimizer: object = new NoOptimizer(), width = 64) => {
    const ends = [new nn.Linear(width, 32), new nn.Linear(32, width)] as const;
    const module = new nn.Sequential(ends[0], new nn.ReLU(), ends[1]);
    const config = configOf(
      (section ? { weight_quantization: { quantized_initialization: section } } : {}) as never,
    );
    quantizeWeights({ module, config } as never, optimizer as never);
    return module
      .modules()
      .flatMap((module) =>
        module instanceof nn.QuantizedLinear
          ? [[module.weight_packed.shape, module.weight_scale.shape].join(' ')]
          : [],
      );
  };

  test('stores linear layers in few bits, without an optimizer', () => {
    expect(groupsOf(null)).toEqual([]);
    // Words of 32 bits, and scales of groups.
    expect(groupsOf({ num_bits: 8 })).toEqual(['32,16 32,1', '64,8 64,1']);
    expect(groupsOf({ num_bits: 4 }, new NoOptimizer(), 256)).toEqual([
      '32,32 32,2',
      '256,4 256,1',
    ]);
    expect(groupsOf({ num_bits: 4, group_size: 16 })).toEqual(['32,8 32,4', '64,4 64,2']);
    expect(thrownBy(() => groupsOf({ num_bits: 8 }, adam()))).toMatchObject({
      code: 'DS_CONFIG',
      op: 'weight_quantization.quantized_initialization',
      got: 'AdamW',
    });
    expect(groupsOf(null, adam())).toEqual([]);
  });
});

describe('sequence_parallel_size', () => {
  const setupFor = (more: DsConfig, options: object = {}, mesh: MeshOptions = { sp: 2 }) => {
    const job = jobOf(2, mesh);
    const module = { shareSequence() {} };
    const decisions = {
      module,
      config: configOf(more, 2),
      optimizer: adam(),
      plan: null,
      ...options,
    };
    return requireSequence(decisions as never, job);
  };
  const two = { sequence_parallel_size: 2 };

  test('divides samples if the mesh has as many ranks', () => {
    expect(setupFor(two)).toBe(true);
    expect(setupFor({})).toBe(false);
    expect(setupFor({ data_parallel_size: 2 } as never, {}, {})).toBe(false);
  });

  test.each<[what: string, call: () => unknown, op: string, got: string]>([
    ['another mesh', () => setupFor(two, {}, {}), 'sequence_parallel_size', '2'],
    ['a pipeline', () => setupFor(two, { plan: {} }), 'sequence_parallel_size', '2'],
    [
      'local gradients',
      () => setupFor(two, { optimizer: onebit() }),
      ...(['sequence_parallel_size', '2 with OneBitAdam'] as const),
    ],
    [
      'a model without parts',
      () => setupFor(two, { module: linear() }),
      ...(['sequence_parallel_size', 'a Linear'] as const),
    ],
    [
      'other data ranks',
      () => setupFor({ data_parallel_size: 2 } as never),
      ...(['data_parallel_size', '2'] as const),
    ],
  ])('is refused with %s', (_, call, op, got) => {
    expect(thrownBy(call)).toMatchObject({ code: 'DS_CONFIG', op, got });
  });

  test('stays in effect until the engine is destroyed', () => {
    const shared: unknown[] = [];
    const module = { shareSequence: (ranks: unknown) => void shared.push(ranks) };
    const site = { owned: new ReleaseStack(), undo: new ReleaseStack() };
    splitSequence({ module } as never, { sequenceGroup: null } as never, site);
    expect(shared).toEqual([]);
    splitSequence({ module } as never, { sequenceGroup: { size: 2, rank: 1 } } as never, site);
    expect(shared).toHaveLength(1);
    expect(shared[0]).not.toBeNull();
    site.owned.release();
    expect(shared[1]).toBeNull();
  });
});

describe('tensor_parallel', () => {
  test('both keys count, and at least one rank', () => {
    const size = (autotp_size: number, tp_size: number) =>
      tensorSize({ autotp_size, tensor_parallel: { tp_size } } as never);
    expect([size(0, 1), size(2, 1), size(0, 4), size(2, 4)]).toEqual([1, 2, 4, 4]);
  });

  const split = (more: DsConfig, mesh: MeshOptions, module: nn.Module = linear()) =>
    splitLayers({ module, config: configOf(more), job: jobOf(1, mesh) } as never);

  test('without it layers stay whole; with another mesh it is refused', async () => {
    await split({}, {});
    const error = await refusal(() => split({ tensor_parallel: { autotp_size: 2 } }, {}));
    expect(error).toMatchObject({ code: 'DS_CONFIG', op: 'tensor_parallel.autotp_size', got: '2' });
    expect(error.hint).toMatch(/Start 2 ranks/);
  });

  class Mlp extends nn.Module {
    readonly up = new nn.Linear(4, 8);
    readonly down = new nn.Linear(8, 4);

    forward(x: Tensor): Tensor {
      return this.down.call(this.up.call(x));
    }
  }
  class PlannedMlp extends Mlp {
    tensorPlan = () => ({ layers: { up: 'column', down: 'row' } });
  }

  /** The shapes of a model after a division by these rules over the second of two ranks. */
  async function shapesOf(module: nn.Module, partition_config?: object): Promise<unknown> {
    const group = Object.create(ProcessGroup.prototype, {
      rank: { value: 1 },
      size: { value: 2 },
      ranks: { value: [0, 1] },
    });
    const mesh = { size: () => 2, axis: async () => group };
    const config = configOf({ tensor_parallel: { autotp_size: 2, partition_config } } as never);
    const job = { worldSize: 1, rank: 0, mesh };
    await splitLayers({ module, config, job } as never);
    return Object.fromEntries(
      [...module.namedParameters()].map(([name, { shape }]) => [name, shape.join()]),
    );
  }
  const PARTS = { 'up.weight': '4,4', 'up.bias': '4', 'down.weight': '4,4', 'down.bias': '4' };
  const WHOLE = { 'up.weight': '8,4', 'up.bias': '8', 'down.weight': '4,8', 'down.bias': '4' };
  const rule = (pattern: string, partition_type: string, more: object = {}) => ({
    patterns: [pattern],
    partition_type,
    ...more,
  });
  const both = [rule('up\\.weight', 'column'), rule('down', 'row')];

  test('the plan of a model, the rules of the configuration, or both divide layers', async () => {
    expect(await shapesOf(new PlannedMlp())).toEqual(PARTS);
    expect(await shapesOf(new Mlp(), { layer_specs: both })).toEqual(PARTS);
    // A rule comes before the plan.
    const skip = ['up.weight', 'down.bias'].map((pattern) => rule(pattern, 'skip'));
    expect(await shapesOf(new PlannedMlp(), { layer_specs: skip })).toEqual(WHOLE);
    const settings = { use_default_specs: false, layer_specs: [rule('up', 'skip')] };
    expect(await shapesOf(new PlannedMlp(), settings)).toEqual(WHOLE);
    const packed = [rule('up', 'column', { shape: [2, -1] }), both[1]];
    const module = new Mlp();
    expect(await shapesOf(module, { layer_specs: packed })).toEqual(PARTS);
    expect(module.up.weight.region.boxes).toEqual(
      [2, 6].map((at) => ({ offset: [at, 0], shape: [2, 4] })),
    );
    // A second division changes nothing.
    expect(await shapesOf(module, { layer_specs: both })).toEqual(PARTS);
  });

  test('a part of a layer is one only among several ranks of its axis', () => {
    const fullLayer = linear();
    const part = linear();
    part.weight.partOf({ whole: [64, 16], boxes: [{ offset: [32, 0], shape: [32, 16] }] });
    const isCut = (module: nn.Module, tp: number) => isCutOver(jobOf(tp, { tp }), module);
    expect([isCut(part, 2), isCut(part, 1), isCut(fullLayer, 2)]).toEqual([true, false, false]);
  });

  test('a model without plan and rules, and a rule without a layer, are refused', async () => {
    expect(await refusal(() => shapesOf(new Mlp()))).toMatchObject({
      code: 'DS_CONFIG',
      op: 'tensor_parallel.autotp_size',
      got: 'a Mlp',
    });
    const settings = {
      use_default_specs: false,
      layer_specs: [rule('up', 'skip'), rule('bias', 'row')],
    };
    expect(await refusal(() => shapesOf(new PlannedMlp(), settings))).toMatchObject({
      op: 'tensor_parallel.partition_config.layer_specs.1',
      got: 'bias',
      hint: 'Examples of names: up.weight, up.bias, down.weight.',
    });
  });
});

describe('fp8', () => {
  const recipeOf = (module: nn.Module, section: object = {}) => {
    const site = { owned: new ReleaseStack(), undo: new ReleaseStack() };
    const config = configOf({ bf16: { enabled: true }, fp8: { enabled: true, ...section } });
    const device = { kind: 'cpu', info: { name: 'a CPU', detail: '' } };
    useFp8({ module, device, config } as never, site);
    return site;
  };
  const recipes = (module: nn.Module) =>
    [...module.namedModules()].flatMap(([name, one]) =>
      one instanceof nn.Linear ? [[name, one.fp8]] : [],
    );

  class Net extends nn.Module {
    readonly wide = new nn.Linear(32, 48);
    readonly odd = new nn.Linear(48, 15);
    readonly last = new nn.Linear(48, 16);
    readonly lm_head = new nn.Linear(16, 64);

    forward(): void {}
  }

  test('sets suitable layers, but not heads, until the engine is destroyed', () => {
    const net = new Net();
    const { owned } = recipeOf(net, { recipe: 'rowwise', exclude: ['last'] });
    const of = (wide: string | null) => [
      ['wide', wide],
      ['odd', null],
      ['last', null],
      ['lm_head', null],
    ];
    expect(recipes(net)).toEqual(of('rowwise'));
    owned.release();
    expect(recipes(net)).toEqual(of(null));
  });

  test('is refused without a layer that fits, and for names without a layer', () => {
    expect(thrownBy(() => recipeOf(new nn.Linear(15, 16)))).toMatchObject({
      code: 'DS_CONFIG',
      op: 'fp8.enabled',
      got: '1 linear layers, none of them',
      expected: 'a model with linear layers of dims that are multiples of 16',
    });
    expect(thrownBy(() => recipeOf(new Net(), { exclude: ['last', 'nope'] }))).toMatchObject({
      code: 'DS_CONFIG',
      op: 'fp8.exclude',
      got: '"nope"',
    });
  });

  test.each<[recipe: string, capability: string, op: string | null]>([
    ['tensorwise', '8.6', 'fp8.enabled'],
    ['tensorwise', '8.9', null],
    ['tensorwise', '12.0', null],
    ['rowwise', '8.6', 'fp8.recipe'],
    ['rowwise', '8.9', 'fp8.recipe'],
    ['rowwise', '9.0', null],
    ['rowwise', '10.3', null],
    ['rowwise', '12.0', 'fp8.recipe'],
    ['blockwise', '9.0', null],
    ['blockwise', '10.0', 'fp8.recipe'],
  ])('%s on a GPU of %s: %s', (recipe, capability, op) => {
    const info = { name: 'a card', detail: `compute capability ${capability}` };
    const check = () => requireFp8Gpu(recipe as never, { kind: 'cuda', info } as never);
    if (op === null) check();
    else {
      const error = thrownBy(check);
      expect(error).toMatchObject({ code: 'DS_CONFIG', op });
      expect(error.hint).toMatch(capability === '8.6' ? /enabled to false/ : /"tensorwise"/);
    }
    requireFp8Gpu(recipe as never, { kind: 'cpu', info } as never);
  });
});

describe('the needs of an optimizer', () => {
  test('with an exchange of moments: no stage, and no pipeline', () => {
    const at = (stage: number) => configOf({ zero_optimization: { stage } } as never);
    requireExchange(adam(), at(2), true);
    requireExchange(onebit() as never, at(0), false);
    expect(thrownBy(() => requireExchange(onebit() as never, at(1), false))).toMatchObject({
      code: 'DS_CONFIG',
      op: 'zero_optimization.stage',
      got: '1, which shards gradients and moments',
    });
    expect(thrownBy(() => requireExchange(onebit() as never, at(0), true))).toMatchObject({
      code: 'DS_CONFIG',
      op: 'optimizer.type',
      expected: 'an optimizer with summed gradients in a pipeline',
    });
  });

  test('gradients are summed in every step, or in the steps that the optimizer requests', () => {
    expect(sumsGradients(adam(), {} as never)).toBeNull();
    const progress = { appliedSteps: 2 };
    const isSummed = sumsGradients(onebit() as never, progress as never);
    expect(isSummed?.()).toBe(true);
    progress.appliedSteps = 3;
    expect(isSummed?.()).toBe(false);
  });

  test('elementwise with divided layers', () => {
    requireElementwise(adam());
    for (const one of [lamb(), onebit()]) {
      const error = thrownBy(() => requireElementwise(one as never));
      expect(error.expected).toBe('an elementwise optimizer with tensor parallelism');
    }
  });

  const entry = (name: string, offset: number, numel: number, more: object = {}) => ({
    name,
    group: 0,
    offset,
    numel,
    shape: [numel],
    region: wholeRegion([numel]),
    ...more,
  });
  const unitOf = (numel: number, ...entries: object[]) => [{ layout: { numel, entries } }] as never;

  test('state of whole parameters excludes parts of layers', () => {
    const part = { region: { whole: [8], boxes: [{ offset: [4], shape: [4] }] } };
    const optimizer = (declared: object) =>
      ({ name: 'Own', groups: [{}], declareState: () => declared }) as never;
    const units = unitOf(64, entry('w', 0, 4, part));
    requireUncutState(optimizer({ a: perElement([4]) }), units);
    requireUncutState(optimizer({ a: perParameter([2], { saved: false }) }), units);
    requireUncutState(optimizer({ a: perParameter([2]) }), unitOf(64, entry('w', 0, 4)));
    for (const state of [perParameter([2]), perBlock([4], 2)]) {
      expect(thrownBy(() => requireUncutState(optimizer({ a: state }), units))).toMatchObject({
        code: 'DS_CONFIG',
        op: 'optimizer Own',
        got: 'w, a part of [8]',
        expected: 'whole parameters on every rank, for the state a',
      });
    }
  });

  test('a parameter across a border of shards is cut', () => {
    const whole = { name: 'Own', groups: [{}], needsWholeParameters: () => true } as never;
    const cut = (entries: object[], stage = 1, shards = 2) =>
      findCutParameter(whole, unitOf(16, ...entries), { stage, shards });
    expect(cut([entry('a', 0, 8), entry('b', 8, 8)])).toBeNull();
    expect(cut([entry('a', 0, 9), entry('b', 9, 7)])).toBe('a');
    expect(cut([entry('a', 0, 4), entry('b', 4, 5)])).toBe('b');
    expect(cut([entry('a', 0, 16)], 0)).toBeNull();
    expect(cut([entry('a', 0, 16)], 1, 1)).toBeNull();
    expect(cut([entry('a', 0, 16)], 1, 4)).toBe('a');
    expect(cut([entry('a', 8, 0), entry('b', 0, 8)])).toBeNull();
    const none = { name: 'Own', groups: [{}] } as never;
    const sharding = { stage: 1, shards: 2 };
    expect(findCutParameter(none, unitOf(16, entry('a', 0, 16)), sharding)).toBeNull();
    expect(
      thrownBy(() => requireWholeParameters(whole, unitOf(16, entry('a', 0, 16)), sharding)),
    ).toMatchObject({
      code: 'DS_CONFIG',
      op: 'zero_optimization.stage',
      got: '1, which divides a between ranks',
    });
    requireWholeParameters(none, unitOf(16, entry('a', 0, 16)), sharding);
    requireWholeParameters(lamb(), unitOf(16, entry('a', 0, 16)), sharding);
  });

  test('shards begin at the largest block; frozen parameters have no state', () => {
    const declared = { a: perElement([8]), b: perBlock([8], 4), c: perParameter([3]) };
    const optimizer = { name: 'Own', groups: [{}], declareState: () => declared } as never;
    const layout = layoutFor(optimizer, 2);
    const of = (group: number) => ({ group, shape: [8] }) as never;
    expect([layout.shards, layout.blockOf?.(of(0)), layout.blockOf?.(of(FROZEN))]).toEqual([
      2, 4, 1,
    ]);
    expect(layout.kindOf?.(of(0))).not.toBe(layout.kindOf?.(of(FROZEN)));
  });
});

test('a parameter has its own rank group, and a unit the rank group of its first parameter', () => {
  const [a, b] = linear().parameters() as [nn.Parameter, nn.Parameter];
  const model = { name: '', group: 'all' } as never;
  const tie = { name: 'tie', group: 'some' } as never;
  const groups = new ZeroGroups(model, [{ group: tie, parameters: [a] }]);
  expect([groups.all, groups.ownShardGroups]).toEqual([[model, tie], ['some']]);
  expect([groups.of(a), groups.of(b)]).toEqual([tie, model]);
  const unit = (...parameters: nn.Parameter[]) =>
    ({ parameters: parameters.map((parameter) => ({ parameter })) }) as never;
  expect([groups.ofUnit(unit(a, b)), groups.ofUnit(unit(b, a)), groups.ofUnit(unit())]).toEqual([
    tie,
    model,
    model,
  ]);
});
