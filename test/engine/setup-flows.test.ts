// Tests the flows of gradients and weights that a configuration selects, and pipeline stages.
import { Mesh } from '../../lib/comm/mesh.js';
import { type MeshOptions, MeshShape } from '../../lib/comm/mesh-shape.js';
import { resolveConfig } from '../../lib/config/index.js';
import { ReleaseStack } from '../../lib/engine/release-stack.js';
import { keepStages, openPipeline, planPipeline } from '../../lib/engine/setup/pipeline.js';
import { buildStages, offloadsWeights, shardsWeights } from '../../lib/engine/setup/stage.js';
import { buildUnits } from '../../lib/engine/setup/units.js';
import { ZeroGroups } from '../../lib/engine/zero-groups.js';
import { type DsConfig, nn, optim, PipelineModule, type Tensor } from '../../lib/index.js';
import { Links, Pipeline } from '../../lib/pipe/index.js';
import { cpu } from '../../lib/runtime/device.js';
import type { GradientFlow } from '../../lib/zero/gradients.js';
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

describe('the flows of gradients and weights', () => {
  const several = { rank: 0, size: 2, ranks: [0, 1] };
  const alone = { rank: 0, size: 1, ranks: [0] };

  /** The flows of one record of ranks, and how gradients are summed: the outermost wire first. */
  function flowsOf(more: DsConfig, input: { record?: object; options?: object } = {}) {
    const record = {
      name: '',
      group: several,
      dataRanks: 2,
      replicas: null,
      secondary: null,
      source: several,
      spansStages: false,
      ...input.record,
    };
    const config = configOf(more, 2);
    const stages = buildStages(config, { trained: [], frozen: [] }, cpu(), {
      groups: new ZeroGroups(record as never, []),
      ...input.options,
    });
    const [{ gradients, weights }] = (
      stages as unknown as { stages: [{ gradients: GradientFlow; weights: object }] }
    ).stages;
    const wires: string[] = [];
    let wire = gradients.route?.wire as { inner?: object; divisor?: number; dtype?: string };
    for (; wire?.inner; wire = wire.inner) {
      const detail = wire.divisor ?? wire.dtype;
      wires.push(`${wire.constructor.name}${detail === undefined ? '' : ` ${detail}`}`);
    }
    const { factor, takesEach } = gradients;
    const { options: buckets } = (gradients.route?.buckets ?? {}) as { options?: object };
    stages.dispose();
    return { wires, factor, takesEach, isAlone: gradients.route === null, weights, buckets };
  }
  const bf16 = { bf16: { enabled: true } };
  const zero = (more: object) => ({ zero_optimization: more }) as DsConfig;

  test.each<[more: DsConfig, wires: string[], factor: number]>([
    [bf16, [], 2],
    [{ fp16: { enabled: true } }, ['DividedWire 2'], 1],
    [{ ...bf16, communication_data_type: 'fp16' }, ['DividedWire 2', 'CastWire f16'], 1],
    [
      { fp16: { enabled: true }, communication_data_type: 'fp32' },
      ...([['CastWire f32', 'DividedWire 2'], 1] as const),
    ],
    [{ ...bf16, communication_data_type: 'fp32' }, ['CastWire f32'], 2],
    [{ ...bf16, prescale_gradients: true }, ['DividedWire 2'], 1],
    [{ ...bf16, gradient_predivide_factor: 4 }, ['DividedWire 4'], 0.5],
    [
      { fp16: { enabled: true }, gradient_predivide_factor: 4 },
      ...([['DividedWire 4'], 0.5] as const),
    ],
    [{ ...bf16, ...zero({ stage: 2, reduce_scatter: false }) }, ['AllReduceWire'], 2],
    [{ ...bf16, gradient_allreduce_op: 'sum' } as never, [], 1],
  ] as never)('%j sums by %j, and later by %d', (more, wires, factor) => {
    expect(flowsOf(more)).toMatchObject({ wires, factor, isAlone: false });
  });

  test('a single rank sends nothing, unless it has replicas or shares samples', () => {
    const single = { group: alone, dataRanks: 1 };
    const of = (record: object, more = {}) => flowsOf({ ...bf16, ...more }, { record });
    expect(of(single)).toMatchObject({ isAlone: true, factor: 1, wires: [] });
    expect(of(single, { fp16: { enabled: true }, bf16: {} }).wires).toEqual([]);
    expect(of({ ...single, replicas: several }).isAlone).toBe(false);
    expect(of({ ...single, replicas: several }).wires).toEqual(['ReplicatedWire']);
    expect(of({ group: alone, dataRanks: 2 }).isAlone).toBe(false);
  });

  test('stages 2 and 3 reduce every micro-batch; weights are whole, published or gathered', () => {
    const of = (stage: number, record = {}, more = {}) =>
      flowsOf({ ...bf16, ...zero({ stage, ...more }) }, { record });
    expect([0, 1, 2, 3].map((stage) => of(stage).takesEach)).toEqual([false, false, true, true]);
    const weights = (stage: number, record = {}, more = {}) =>
      of(stage, record, more).weights.constructor.name;
    expect([0, 1, 2, 3].map((stage) => weights(stage))).toEqual([
      'WholeWeights',
      'PublishedWeights',
      'PublishedWeights',
      'GatheredWeights',
    ]);
    const single = { group: alone, dataRanks: 1 };
    expect([1, 3].map((stage) => weights(stage, single))).toEqual(['WholeWeights', 'WholeWeights']);
    const host = { offload_param: { device: 'cpu' } };
    expect(weights(3, single, host)).toBe('GatheredWeights');
    const config = (more: object) => configOf({ ...bf16, ...zero(more) }, 2);
    expect(offloadsWeights(config({ stage: 3, ...host }))).toBe(true);
    expect(offloadsWeights(config({ stage: 3 }))).toBe(false);
    expect(shardsWeights(config({ stage: 2 }), { size: 2 })).toBe(false);
    expect(shardsWeights(config({ stage: 3 }), { size: 2 })).toBe(true);
  });

  test('collectives overlap with compute if asked, and by default at stage 3', () => {
    const of = (more: object) => {
      const { buckets, weights } = flowsOf({ ...bf16, ...zero(more) });
      const { options } = weights as { options?: { overlap: boolean } };
      return [(buckets as { overlap?: boolean } | undefined)?.overlap, options?.overlap];
    };
    expect([of({ stage: 1 }), of({ stage: 2 }), of({ stage: 3 })]).toEqual([
      [false, false],
      [false, false],
      [true, true],
    ]);
    expect(of({ stage: 2, overlap_comm: true })).toEqual([true, true]);
    expect(of({ stage: 3, overlap_comm: false })).toEqual([false, false]);
    const elements = (more: object) => {
      const { buckets } = flowsOf({ ...bf16, ...zero({ stage: 2, ...more }) });
      return (buckets as { bucketElements?: number }).bucketElements;
    };
    expect(elements({ reduce_bucket_size: 700 })).toBe(700);
    // The host updates each unit as it arrives.
    const offload_optimizer = { device: 'cpu' };
    expect(elements({ reduce_bucket_size: 700, offload_optimizer })).toBe(0);
  });

  test('gradients of an optimizer that exchanges others are summed in some steps', () => {
    let isSummed = true;
    const { factor: summed } = flowsOf(bf16, { options: { isSummed: () => isSummed } });
    isSummed = false;
    const own = (more: DsConfig) => flowsOf(more, { options: { isSummed: () => isSummed } }).factor;
    expect([summed, own(bf16), own({ ...bf16, gradient_allreduce_op: 'sum' } as never)]).toEqual([
      2, 1, 0.5,
    ]);
  });
});

describe('the stages of a pipeline', () => {
  const layers = () => [new nn.Linear(8, 8), new nn.Linear(8, 8), new nn.Linear(8, 8)];
  const modelOf = (more: object = {}) =>
    new PipelineModule({ layers: layers(), lossFn: (x: Tensor) => x.sum(), ...more } as never);
  const planOf = (module: nn.Module, more: DsConfig = {}, mesh: MeshOptions = { pp: 2 }) => {
    const config = configOf(more, 2);
    const size = mesh.pp ? 2 : 1;
    return planPipeline({ module, config, job: jobOf(size, mesh), clients: {} } as never);
  };
  const staged = { pipeline: { stages: 2 } } as DsConfig;

  test('come from the model or the configuration', () => {
    expect(planOf(linear())).toBeNull();
    expect(planOf(modelOf())).toMatchObject({ dynamicShape: false, schedule: { name: '1f1b' } });
    expect(planOf(modelOf({ dynamicShape: true }), staged)?.dynamicShape).toBe(true);
    expect(thrownBy(() => planOf(linear(), staged))).toMatchObject({
      code: 'DS_CONFIG',
      op: 'pipeline.stages',
      got: 'a Linear',
    });
  });

  test.each<[schedule: string, name: string, perRank: number]>([
    ['1f1b', '1f1b', 1],
    ['gpipe', 'gpipe', 1],
    ['zero-bubble', 'zero-bubble', 1],
    ['interleaved', 'interleaved', 2],
  ])('follow the schedule %s', (schedule, name, perRank) => {
    const localLayers = [...layers(), new nn.Linear(8, 8)];
    const pipeline = { schedule, ...(perRank > 1 ? { stages_per_rank: perRank } : {}) };
    const plan = planOf(modelOf({ layers: localLayers }), { pipeline } as never);
    expect(plan?.schedule.name).toMatch(new RegExp(`^${name}`));
    expect(plan?.schedule.stagesPerRank).toBe(perRank);
  });

  test('are divided by the method of the model or of the configuration, not by two', () => {
    const of = (localText: string | undefined, partition?: string) =>
      planOf(modelOf(localText === undefined ? {} : { partitionMethod: localText }), {
        pipeline: { stages: 2, ...(partition === undefined ? {} : { partition }) },
      } as never);
    for (const [own, partition] of [
      [undefined, 'uniform'],
      ['uniform', undefined],
      ['uniform', 'best'],
      ['Uniform', 'uniform'],
    ] as const) {
      expect(of(own, partition)).not.toBeNull();
    }
    expect(thrownBy(() => of('parameters', 'uniform'))).toMatchObject({
      code: 'DS_CONFIG',
      op: 'pipeline.partition',
      got: '"uniform"',
      expected: '"parameters", the partitionMethod of the PipelineModule',
      hint: 'Remove one of them, partition or partitionMethod.',
    });
    const seeds = (seedLayers: boolean | undefined, seed_layers: boolean) =>
      planOf(modelOf({ seedLayers }), { pipeline: { stages: 2, seed_layers } } as never);
    for (const [own, given] of [
      [undefined, true],
      [true, true],
      [false, false],
    ] as const) {
      expect(seeds(own, given)).not.toBeNull();
    }
    const optionsOf = (pipeline: object, options: object = {}) => {
      const plan = planOf(modelOf(options), { pipeline: { stages: 2, ...pipeline } } as never);
      return (plan?.pipeline as unknown as { options: object } | undefined)?.options;
    };
    expect(optionsOf({})).not.toHaveProperty('seedLayers');
    expect(optionsOf({ seed_layers: true })).toMatchObject({ seedLayers: true });
    const interval = { activation_checkpoint_interval: 3 };
    expect(optionsOf({})).not.toHaveProperty('activationCheckpointInterval', 3);
    expect(optionsOf(interval)).toMatchObject({ activationCheckpointInterval: 3 });
    expect(optionsOf({ partition: 'uniform' })).toMatchObject({ partitionMethod: 'uniform' });
    expect(thrownBy(() => seeds(false, true))).toMatchObject({
      op: 'pipeline.seed_layers',
      got: 'true',
      expected: 'false, the seedLayers of the PipelineModule',
    });
  });

  test('are as many as the ranks along pp', () => {
    expect(thrownBy(() => planOf(modelOf(), { pipeline: { stages: 3 } } as never))).toMatchObject({
      code: 'DS_CONFIG',
      op: 'pipeline.stages',
      got: '3',
    });
    expect(thrownBy(() => planOf(modelOf({ numStages: 3 })))).toMatchObject({
      op: 'PipelineModule numStages',
      got: '3',
    });
    expect(planOf(modelOf({ numStages: 2 }), staged)).not.toBeNull();
  });

  test.each<[stage: number, mesh: MeshOptions, expected: RegExp | null]>([
    [1, { pp: 2 }, null],
    [2, { pp: 2 }, /^0 or 1 for a pipeline/],
    [3, { pp: 2 }, /^0 or 1 for a pipeline/],
    [2, {}, null],
    [3, {}, /^0, 1 or 2 for a pipeline of one stage/],
  ])('of ZeRO stage %d on %j', (stage, mesh, expected) => {
    const call = () => planOf(modelOf(), { zero_optimization: { stage } } as never, mesh);
    if (!expected) expect(call()).not.toBeNull();
    else {
      expect(thrownBy(call)).toMatchObject({
        code: 'DS_CONFIG',
        op: 'zero_optimization.stage',
        got: `${stage}`,
        expected: expect.stringMatching(expected),
      });
    }
  });

  /** Opens the ties of a model of three layers with these weights, on one of two stages. */
  async function tiesOf(
    rank: number,
    weights: (all: nn.Linear[]) => void,
    optimizer: (params: nn.Parameter[]) => object = adam,
  ) {
    const localLayers = layers();
    weights(localLayers);
    const module = modelOf({ layers: localLayers, partitionMethod: 'uniform' });
    const stage = { rank, ranks: 2 };
    const pipeline = new Pipeline(module, stage, 1, { partitionMethod: 'uniform' });
    const opened: number[][] = [];
    jest.spyOn(Links, 'open').mockResolvedValue('links' as never);
    const mesh = new Mesh(MeshShape.over(2, { pp: 2 }), { rank, size: 2 } as never, null as never);
    const job = {
      rank,
      worldSize: 2,
      world: { rank, size: 2 },
      mesh,
      newGroup: async (ranks: number[]) => {
        opened.push(ranks);
        return { ranks };
      },
    };
    const plan = { pipeline, schedule: planOf(modelOf())?.schedule, dynamicShape: false };
    const options = { plan, optimizer: optimizer([...module.parameters()]) };
    try {
      const pipe = await openPipeline(job as never, options as never);
      const ties = pipe?.ties.map(({ group: { group: _, source: __, ...group }, parameters }) => ({
        ...group,
        parameters: parameters.length,
      }));
      const [[, lists] = []] = jest.mocked(Links.open).mock.calls;
      return { links: pipe?.links, ties, module, pipeline, lists };
    } finally {
      jest.restoreAllMocks();
    }
  }
  const tie = ([first, , last]: nn.Linear[]): void => {
    (last as { weight: nn.Parameter }).weight = (first as nn.Linear).weight;
  };

  test('share the ranks of weights that several of them have', async () => {
    for (const rank of [0, 1]) {
      const { links, ties } = await tiesOf(rank, tie);
      expect(links).toBe('links');
      expect(ties).toEqual([
        {
          name: 'tied by stages 0, 1',
          dataRanks: 1,
          replicas: null,
          secondary: null,
          spansStages: true,
          parameters: 1,
        },
      ]);
    }
    expect((await tiesOf(0, () => {})).ties).toEqual([]);
    const freezeTied = (all: nn.Linear[]): void => {
      tie(all);
      all[0]?.weight.requireGrad(false);
    };
    expect((await tiesOf(0, freezeTied)).ties).toEqual([]);
    const whole = (params: nn.Parameter[]) => new optim.Lamb(params, { lr: 0.1 });
    await tiesOf(0, () => {}, whole);
    const error = await refusal(() => tiesOf(0, tie, whole));
    expect(error).toMatchObject({ code: 'DS_CONFIG', op: 'optimizer.type', got: 'Lamb' });
    const muon = (params: nn.Parameter[]) =>
      new optim.Muon([{ params, useMuon: false }], { lr: 0.1 });
    expect((await refusal(() => tiesOf(0, tie, muon))).got).toBe('Muon');
    expect(await openPipeline(null as never, { plan: null, optimizer: adam() })).toBeNull();
  });

  test('open links for training, and for evaluation after it', async () => {
    const { lists } = await tiesOf(0, () => {});
    expect(lists?.map((list) => list.map(({ kind }) => kind).join(' '))).toEqual([
      'F sendF recvB B reduce F sendF',
      'recvF F I sendB W reduce recvF F',
    ]);
  });

  test('keep their own layers, and the optimizer their parameters, until the end', async () => {
    const { module, pipeline } = await tiesOf(1, () => {});
    const optimizer = new optim.AdamW(
      [{ params: module.parameters().slice(0, 2) }, { params: module.parameters().slice(2) }],
      { lr: 0.1 },
    );
    const counts = () => [
      module.parameters().length,
      ...optimizer.groups.map(({ params }) => params.length),
    ];
    const site = { owned: new ReleaseStack(), undo: new ReleaseStack() };
    keepStages({ module, optimizer, plan: null }, site as never);
    expect(counts()).toEqual([6, 2, 4]);
    const plan = { pipeline, schedule: null, dynamicShape: false };
    keepStages({ module, optimizer, plan } as never, site as never);
    expect(counts()).toEqual([2, 0, 2]);
    site.undo.release();
    expect(module.parameters()).toHaveLength(6);
  });
});

describe('the units of a model', () => {
  class Block extends nn.Module {
    readonly fc = new nn.Linear(4, 4);

    forward(): void {}
  }

  class Net extends nn.Module {
    readonly wte = new nn.Linear(4, 8, { bias: false });
    readonly h = [new Block(), new Block()];
    readonly head = new nn.Linear(4, 8, { bias: false });

    forward(): void {}
  }

  function unitsOf(
    net: Net,
    more: { shardsWeights?: boolean; own?: object[]; groups?: object[] } = {},
  ) {
    const undo = new ReleaseStack();
    const model = { name: '', group: { size: 1 }, spansStages: false };
    const trained = net.parameters().filter(({ requiresGrad }) => requiresGrad);
    const built = buildUnits(
      net,
      (more.groups ?? [{ params: trained }]) as never,
      {
        dtype: 'bf16',
        gradDtype: 'f32',
        device: cpu(),
        shardsWeights: more.shardsWeights ?? false,
        groups: new ZeroGroups(model as never, (more.own ?? []) as never),
      },
      undo,
    );
    const outline = (units: typeof built.trained | typeof built.frozen): unknown[] =>
      units.map(({ name, parameters, dtype, gradient }) => [
        name,
        parameters.map((parameter) => parameter.name).join(' '),
        dtype,
        gradient?.dtype ?? null,
      ]);
    for (const unit of [...built.trained, ...built.frozen]) unit.dispose();
    return { trained: outline(built.trained), frozen: outline(built.frozen), undo };
  }
  const blocks = [0, 1].map((i) => [`h.${i}`, `h.${i}.fc.weight h.${i}.fc.bias`, 'bf16', 'f32']);

  test('are the root, then the elements of lists, in forward order', () => {
    expect(unitsOf(new Net())).toMatchObject({
      trained: [['root', 'wte.weight head.weight', 'bf16', 'f32'], ...blocks],
      frozen: [],
    });
  });

  test('hold a shared parameter once, in the first unit with it', () => {
    const net = new Net();
    const [first, second] = net.h as [Block, Block];
    (second.fc as { weight: nn.Parameter }).weight = first.fc.weight;
    (net.head as { weight: nn.Parameter }).weight = first.fc.weight;
    expect(unitsOf(net).trained).toEqual([
      ['root', 'wte.weight', 'bf16', 'f32'],
      ['h.0', 'h.0.fc.weight h.0.fc.bias', 'bf16', 'f32'],
      ['h.1', 'h.1.fc.bias', 'bf16', 'f32'],
    ]);
  });

  test('are divided by dtype; sums of another dtype keep it', () => {
    const net = new Net();
    (net.h[0]?.fc.bias as nn.Parameter).fixedDtype = 'f16';
    expect(unitsOf(net).trained.slice(1, 3)).toEqual([
      ['h.0', 'h.0.fc.weight', 'bf16', 'f32'],
      ['h.0 (f16)', 'h.0.fc.bias', 'f16', 'f16'],
    ]);
  });

  test('include frozen parameters if weights are sharded; otherwise these get no gradient', () => {
    const net = new Net();
    net.h[0]?.requiresGrad_(false);
    const sharded = unitsOf(net, { shardsWeights: true });
    expect(sharded.frozen).toEqual([['h.0 (frozen)', 'h.0.fc.weight h.0.fc.bias', 'bf16', null]]);
    expect(sharded.trained).toHaveLength(2);
    const other = new Net();
    other.h[0]?.requiresGrad_(false);
    expect(unitsOf(other).frozen).toEqual([]);
    expect(other.h[0]?.fc.weight.dtype).toBe('bf16');
  });

  test('freeze parameters without a group until the build is undone', () => {
    const net = new Net();
    const { trained, undo } = unitsOf(net, { groups: [{ params: [net.head.weight] }] });
    expect(trained).toEqual([['root', 'head.weight', 'bf16', 'f32']]);
    expect(net.parameters().map(({ requiresGrad }) => requiresGrad)).toEqual(
      net.parameters().map((parameter) => parameter === net.head.weight),
    );
    undo.release();
    expect(net.parameters().every(({ requiresGrad }) => requiresGrad)).toBe(true);
    const [foreign] = new Net().parameters();
    expect(thrownBy(() => unitsOf(net, { groups: [{ params: [foreign] }] }))).toMatchObject({
      op: 'initialize, parameter group 0',
      expected: 'parameters of the model',
      got: 'another tensor, of shape [8, 4]',
    });
  });

  test('of tied stages come first; units with their own ranks have their own name', () => {
    const net = new Net();
    const tie = { name: 'tied by stages 0, 1', group: { size: 1 }, spansStages: true };
    const expert = { name: 'group 1', group: { size: 1 }, spansStages: false };
    const localItems = [
      { group: tie, parameters: [net.head.weight] },
      { group: expert, parameters: [net.h[1]?.fc.weight] },
    ];
    expect(unitsOf(net, { own: localItems }).trained.map((unit) => (unit as string[])[0])).toEqual([
      'tied by stages 0, 1',
      'root',
      'h.0',
      'h.1 (group 1)',
      'h.1',
    ]);
  });
});
