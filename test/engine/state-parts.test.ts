// Tests the parts of weights and state that a rank saves, and the decisions that it reads.
import { resolveConfig } from '../../lib/config/index.js';
import { ReleaseStack } from '../../lib/engine/release-stack.js';
import {
  buildCatalog,
  releaseShards,
  statePart,
  weightShards,
} from '../../lib/engine/saving/engine-shards.js';
import { buildState } from '../../lib/engine/setup/optimizer-state.js';
import { resync, StepDecisions } from '../../lib/engine/step/step-decisions.js';
import { DsError } from '../../lib/errors.js';
import {
  type DsConfig,
  type Engine,
  initialize,
  nn,
  ones,
  optim,
  scope,
  Tensor,
  zero,
} from '../../lib/index.js';
import {
  type DeclaredState,
  perBlock,
  perElement,
  perParameter,
} from '../../lib/optim/declared-state.js';
import { wholeRegion } from '../../lib/runtime/box.js';
import { cpu } from '../../lib/runtime/device.js';
import { held } from '../../lib/tensor/index.js';
import { OptimizerState } from '../../lib/zero/optimizer-state.js';
import { refusal, thrownBy } from '../support/refusal.js';

/** Rows 2 and 3 of [4, 8], on one of two tensor ranks. */
const region = { whole: [4, 8], boxes: [{ offset: [2, 0], shape: [2, 8] }] };
const entry = { region, shape: [2, 8], numel: 16 };

test('a state per element has the region of its parameter, other state its own region', () => {
  const fragment = { entry, from: 4, offset: 100, numel: 8 } as never;
  expect(statePart(perElement([4, 8]), fragment)).toEqual({ region, from: 4, numel: 8 });
  expect(statePart(perBlock([4, 8], 4), fragment)).toEqual({
    region: wholeRegion([8]),
    from: 1,
    numel: 2,
  });
  expect(statePart(perParameter([3]), fragment)).toEqual({
    region: wholeRegion([3]),
    from: 0,
    numel: 3,
  });
});

test('weights that differ between ranks are synchronized after the last decision', () => {
  const calls = (needsResync: boolean): unknown[] => {
    const found: unknown[] = [];
    const stage = { dispatch: () => void found.push('dispatch') };
    resync({
      state: { needsResync, resync: (...given: unknown[]) => void found.push(given) },
      stage,
      stepDecisions: { take: () => void found.push('take') },
      progress: { appliedSteps: 7 },
    } as never);
    return found.map((one) => (Array.isArray(one) ? [one[0], one[1] === stage] : one));
  };
  expect(calls(true)).toEqual(['take', [7, true], 'dispatch']);
  expect(calls(false)).toEqual([]);
});

test('a rank saves the elements that it counts', () => {
  const flat = held(() => Tensor.from(Float32Array.from({ length: 20 }, (_, i) => i)));
  const entries = [
    { name: 'a', region: wholeRegion([10]) },
    { name: 'b', region: wholeRegion([10]) },
  ];
  const fragments = entries.map((own, i) => ({ entry: own, from: 0, offset: 10 * i, numel: 10 }));
  const savedShard = (counted: { offset: number; numel: number }, isPrimary = true) => {
    const shard = {
      fragments,
      counted,
      unit: { parameterOf: (own: object) => own },
      storage: {
        lend: ({ offset, numel }: { offset: number; numel: number }) => ({
          tensor: held(() => flat.alias([numel], [1], offset)),
        }),
        memory: flat,
      },
    };
    const stage = { partitions: [], frozen: [shard] };
    const ranks = { isReplica: false, isPrimary: () => isPrimary };
    const shards = weightShards({ parts: { stage, ranks } } as never, (name) => name !== 'c');
    return shards.map(({ name, from, tensor }) => {
      const values = (tensor as Tensor).toArray() as number[];
      (tensor as Tensor).release();
      return [name, from, values[0], values.length];
    });
  };
  expect(savedShard({ offset: 0, numel: 20 })).toEqual([
    ['a', 0, 0, 10],
    ['b', 0, 10, 10],
  ]);
  expect(savedShard({ offset: 4, numel: 8 })).toEqual([
    ['a', 4, 4, 6],
    ['b', 0, 10, 2],
  ]);
  expect(savedShard({ offset: 12, numel: 3 })).toEqual([['b', 2, 12, 3]]);
  expect(savedShard({ offset: 10, numel: 0 })).toEqual([]);
  expect(savedShard({ offset: 0, numel: 20 }, false)).toEqual([]);
  flat.release();
});

test('a whole state comes from the ranks that have parts of it, in the order of ranks', async () => {
  const model = new nn.Linear(16, 7);
  const [weight, bias] = model.parameters() as [nn.Parameter, nn.Parameter];
  class Own extends optim.AdamW {
    override declareState(group: number, shape: readonly number[]): DeclaredState {
      return { ...super.declareState(group, shape), counts: perParameter([3]) };
    }
  }
  const optimizer = new Own(model.parameters(), { lr: 0.1 });
  const config = { train_batch_size: 1 };
  const { engine } = await initialize({ model, optimizer, config, device: 'cpu' });
  const [partition] = engine.parts.stage.partitions;
  const from: unknown[] = [];
  const broadcast = ({ shape }: Tensor, root: number) => {
    from.push([root, shape.join()]);
    return { wait() {} };
  };
  const read = (parameter: nn.Parameter, key: string): unknown[] => {
    from.length = 0;
    zero.safeGetFullOptimizerState(parameter, key)?.dispose();
    return [...from];
  };
  expect(read(weight, 'exp_avg')).toEqual([]);
  const { shardGroup } = engine.parts.ranks;
  const shards = Object.assign(Object.create(shardGroup), { broadcast });
  Object.defineProperty(shards, 'size', { value: 2 });
  Object.assign(engine.parts.ranks, { shardGroup: shards });
  expect(read(weight, 'exp_avg')).toEqual([]);
  Object.defineProperty(partition, 'isWhole', { value: false });
  // 7 * 16 elements, then 7 after a gap of 16, in two shards of 96 elements.
  expect(read(weight, 'exp_avg')).toEqual([
    [0, '96'],
    [1, '16'],
  ]);
  expect(read(weight, 'fp32')).toHaveLength(2);
  expect(read(bias, 'exp_avg')).toEqual([[1, '7']]);
  expect(read(weight, 'counts')).toEqual([[0, '3']]);
  expect(read(bias, 'counts')).toEqual([[1, '3']]);
  Object.assign(engine.parts.ranks, { shardGroup });
  engine.destroy();
});

describe('an engine of two micro-batches', () => {
  async function engineOf(): Promise<Engine> {
    const model = new nn.Linear(4, 1);
    const { engine } = await initialize({
      model,
      optimizer: new optim.AdamW(model.parameters(), { lr: 0.1 }),
      device: 'cpu',
      config: { train_micro_batch_size_per_gpu: 1, gradient_accumulation_steps: 2 },
    });
    return engine;
  }
  const loss = (engine: Engine) =>
    engine
      .forward<Tensor>(Tensor.from([1, 2, 3, 4], { shape: [1, 4] }))
      .square()
      .mean();

  test('has the same norm with both kinds of backward, which do not mix', async () => {
    const norms: unknown[] = [];
    const engine = await engineOf();
    const weights = [...engine.module.parameters()];
    for (const isDirect of [false, true, false]) {
      for (const _ of [1, 2]) {
        scope(() => {
          for (const one of weights) zero.safeSetFullFp32Param(one, ones(one.shape));
          if (isDirect) loss(engine).backward();
          else engine.backward(loss(engine));
          engine.step();
        });
      }
      norms.push(engine.getGlobalGradNorm());
    }
    expect(norms[0]).toBeGreaterThan(1);
    expect(norms).toEqual([norms[0], norms[0], norms[0]]);
    scope(() => engine.backward(loss(engine)));
    engine.step();
    expect(thrownBy(() => scope(() => loss(engine).backward()))).toMatchObject({
      code: 'DS_AUTOGRAD',
      op: 'engine.backward',
      got: 'the factor 2',
      expected: 'gradients with the factor 1 of the earlier micro-batches of this step',
    });
    engine.destroy();
  });

  test('ends the collectives of a failed backward before it drops the gradients', async () => {
    const engine = await engineOf();
    const { gradients, stage } = engine.parts;
    const calls: string[] = [];
    const flush = jest.spyOn(stage, 'flush').mockImplementation(() => void calls.push('flush'));
    const [partition] = stage.partitions;
    jest
      .spyOn(partition as never, 'dropGrad')
      .mockImplementation((() => void calls.push('drop')) as never);
    const own = new Error('a loss of mine');
    const fail = (): never => {
      throw own;
    };
    expect(() => gradients.run(1, fail)).toThrow(own);
    expect([calls, gradients.inBackward]).toEqual([['flush', 'drop'], false]);
    flush.mockImplementation(fail);
    expect(() => gradients.discard()).toThrow(own);
    expect(calls).toEqual(['flush', 'drop', 'drop']);
    jest.restoreAllMocks();
    engine.noSync(() => scope(() => engine.backward(loss(engine))));
    expect(thrownBy(() => engine.step()).got).toBe(
      'only gradients of noSync(), which do not count',
    );
    engine.zeroGrad();
    expect(thrownBy(() => engine.step()).got).toBe('no gradient since the last step');
    engine.destroy();
  });

  test('reports all numbers of a step', async () => {
    const engine = await engineOf();
    const reports: unknown[] = [];
    engine.parts.watch.add({ stepFinished: (report) => void reports.push(report) });
    for (const _ of [1, 2]) {
      scope(() => engine.backward(loss(engine)));
      engine.step();
    }
    const [found, norm] = [engine.getGlobalLoss(), engine.getGlobalGradNorm()];
    expect(reports).toEqual([
      {
        step: 1,
        samples: 2,
        skipped: 0,
        applied: true,
        loss: found,
        norm,
        busy: null,
        lr: [0.1],
        betas: [[0.9, 0.999]],
        lossScale: 1,
      },
    ]);
    engine.destroy();
  });

  test('synchronizes weights before an evaluation, not in training', async () => {
    const engine = await engineOf();
    const { state } = engine.parts;
    const calls = jest.spyOn(state, 'resync').mockReturnValue(undefined as never);
    Object.defineProperty(state, 'needsResync', { value: true, configurable: true });
    const forward = () => scope(() => void engine.forward(Tensor.from([[1, 2, 3, 4]])));
    forward();
    expect(calls).not.toHaveBeenCalled();
    engine.eval();
    forward();
    expect(calls).toHaveBeenCalledTimes(1);
    Object.defineProperty(state, 'needsResync', { value: false });
    calls.mockRestore();
    engine.destroy();
  });
});

test.each([0, 3])(
  'a catalog has the dtypes and whole shapes of all tensors: stage %i',
  async (stage) => {
    const model = new nn.Linear(4, 2);
    model.bias?.requireGrad(false);
    const optimizer = new optim.AdamW([model.weight], { lr: 0.1 });
    const offload_param = { device: stage === 3 ? 'cpu' : 'none' } as const;
    const config = {
      train_batch_size: 1,
      bf16: { enabled: true },
      zero_optimization: { stage, offload_param } as DsConfig['zero_optimization'],
    };
    const { engine } = await initialize({ model, optimizer, config, device: 'cpu' });
    const namesOf = (wanted: (name: string) => boolean) => {
      const { model: weights, optimizer: state } = buildCatalog(engine, wanted);
      return [Object.fromEntries(weights), Object.fromEntries(state)];
    };
    const of = (shape: number[], dtype: string) => ({ shape, dtype });
    const state = ['fp32', 'exp_avg', 'exp_avg_sq'].map((name) => [
      `weight.${name}`,
      of([2, 4], 'f32'),
    ]);
    expect(namesOf(() => true)).toEqual([
      { weight: of([2, 4], 'bf16'), bias: of([2], 'bf16') },
      Object.fromEntries(state),
    ]);
    expect(namesOf((name) => name === 'bias')[0]).toEqual({ bias: of([2], 'bf16') });
    engine.destroy();
  },
);

test('shards on a disk have no memory to release', () => {
  const release = jest.fn();
  const remote = { dtype: 'f32', numel: 3, bytes: 12, grain: 1, borrow() {} };
  releaseShards([
    { name: 'far', shape: [3], tensor: remote as never },
    {
      name: 'near',
      shape: [3],
      tensor: Object.assign(Object.create(Tensor.prototype), { release }),
    },
  ]);
  expect(release).toHaveBeenCalledTimes(1);
});

describe('the decision of a step', () => {
  /** Decisions that the control returns, in order. */
  function decisionsOf(list: readonly object[], dynamic = false) {
    const calls: unknown[] = [];
    const progress = { globalSteps: 0, globalSamples: 0, skippedSteps: 0, appliedSteps: 0 };
    const whole = { isApplied: true, isFinite: true, loss: 1, norm: 2, busy: null, stop: false };
    const given = list.map((one) => ({
      ...whole,
      emptyBatches: 0,
      uneven: null,
      mismatch: null,
      ...one,
    }));
    const rest = given.values();
    const decisions = new StepDecisions({
      control: { take: () => rest.next().value ?? null },
      scaler: {
        scale: 4,
        dynamic,
        update: (skipped: boolean) => void calls.push(['scale', skipped]),
      },
      progress,
      planner: { rates: () => [0.5], betas: () => [] },
      watch: {
        finishStep: (step: number) => void calls.push(['finish', step]),
        report: ({ step, applied }: { step: number; applied: boolean }) =>
          void calls.push(['report', step, applied]),
      },
      stop: {
        markStep: () => void calls.push('stepped'),
        markAgreement: () => void calls.push('agreed'),
      },
      emptyBatches: { report: (count: number) => void calls.push(['empty', count]) },
    } as never);
    return { decisions, calls, progress };
  }

  test('is read once, in the next call', () => {
    const { decisions, calls, progress } = decisionsOf(
      [{}, { isApplied: false, isFinite: false }],
      true,
    );
    expect(decisions.last).toBeNull();
    decisions.markStep();
    expect(calls).toEqual([['finish', 1], 'stepped']);
    decisions.take();
    decisions.take();
    expect(calls.slice(2)).toEqual([
      ['scale', false],
      ['report', 1, true],
    ]);
    decisions.markStep();
    expect(decisions.last).toMatchObject({ isApplied: false });
    expect(progress).toMatchObject({ globalSteps: 2, appliedSteps: 1, skippedSteps: 1 });
    expect(decisions.lossScale).toBe(4);
  });

  test('carries a stop and empty micro-batches', () => {
    const { decisions, calls } = decisionsOf([{ stop: true, emptyBatches: 3 }, {}]);
    decisions.markStep();
    decisions.take();
    expect(calls).toContain('agreed');
    expect(calls).toContainEqual(['empty', 3]);
    calls.length = 0;
    decisions.markStep();
    decisions.take();
    expect(calls.some((one) => one === 'agreed' || (one as string[])[0] === 'empty')).toBe(false);
  });

  const APART = { ranks: [0, 1], axes: ['tp'], what: 'inputs' };

  test('with a non-finite loss is an error, unless loss scaling handles it', () => {
    const takeDecision = (loss: number | null, dynamic: boolean) => {
      const { decisions } = decisionsOf([{ loss }], dynamic);
      decisions.markStep();
      try {
        decisions.take();
        return null;
      } catch (error) {
        return (error as DsError).code;
      }
    };
    expect([
      takeDecision(1, false),
      takeDecision(null, false),
      takeDecision(Number.NaN, true),
    ]).toEqual([null, null, null]);
    expect(takeDecision(Number.NaN, false)).toBe('DS_NONFINITE');
    expect(takeDecision(Number.POSITIVE_INFINITY, false)).toBe('DS_NONFINITE');
  });

  test('of the last step may have a different loss on copies, but no different batch', () => {
    const last = (more: object) => {
      const { decisions } = decisionsOf([more]);
      decisions.markStep();
      decisions.takeLast();
    };
    last({ loss: Number.NaN });
    expect(() => last({ mismatch: APART })).toThrow(DsError);
    expect(() => last({ mismatch: APART })).toThrow(
      /other inputs on rank 1 than on rank 0 in step 1/,
    );
  });
});

describe('when state is updated', () => {
  /** The schedules of state of one linear layer on one of so many ranks. */
  async function schedulesOf(
    optimizer: (params: nn.Parameter[]) => optim.Optimizer,
    { stage = 1, ranks = 2, offload = {} as object } = {},
    nameOf = ({ schedule }: OptimizerState['updateGroups'][number]): object => schedule,
  ): Promise<string[]> {
    const model = new nn.Linear(16, 36, { bias: false });
    const { engine } = await initialize({
      model,
      config: { train_batch_size: 1 },
      optimizer: adam(model.parameters()),
      device: 'cpu',
    });
    const { partitions } = engine.parts.stage;
    const state = new OptimizerState();
    const owned = new ReleaseStack();
    const config = resolveConfig(
      {
        train_micro_batch_size_per_gpu: 1,
        zero_optimization: { stage, offload_optimizer: offload },
      } as never,
      { worldSize: 2 },
    );
    const group = { rank: 0, size: ranks, ranks: [0, 1], allReduce() {} } as never;
    const given = { config, optimizer: optimizer(model.parameters()), partitions, group };
    buildState(state, { ...given, device: cpu() }, owned);
    owned.release();
    engine.destroy();
    return state.updateGroups.map((share) => nameOf(share).constructor.name);
  }
  const adam = (params: nn.Parameter[]) => new optim.AdamW(params, { lr: 0.1 });
  const lamb = (params: nn.Parameter[]) => new optim.Lamb(params, { lr: 0.1 });
  const muon = (params: nn.Parameter[]) => new optim.Muon([{ params, useMuon: true }], { lr: 0.1 });

  test('with parameters divided over ranks, the optimizer decides what these exchange', async () => {
    expect(await schedulesOf(lamb)).toEqual(['SummedUpdates']);
    expect(await schedulesOf(muon)).toEqual(['GatheredUpdates']);
    expect(await schedulesOf(adam)).toEqual(['DeferredUpdates']);
  });

  test('the device updates its share of state in host memory, the CPU the rest', async () => {
    const of = (gpu_share: number | null, optimizer = adam) => {
      const offload = { device: 'cpu', gpu_share, super_offload: false };
      return schedulesOf(optimizer, { offload }, ({ state }) => state.placement);
    };
    expect(await of(1)).toEqual(['StreamedState']);
    expect(await of(0)).toEqual(['HostState']);
    expect(await of(null)).toEqual(['HostState']);
    expect(await of(0, lamb as never)).toEqual(['HostState']);
    expect(await of(null, lamb as never)).toEqual(['HostState']);
    expect(await refusal(() => of(0.5, lamb as never))).toMatchObject({
      code: 'DS_CONFIG',
      op: 'zero_optimization.offload_optimizer.gpu_share',
      got: 'Lamb, and gpu_share 0.5',
    });
  });

  test('whole parameters need no exchange', async () => {
    for (const optimizer of [lamb, muon]) {
      expect(await schedulesOf(optimizer, { stage: 0 })).toEqual(['DeferredUpdates']);
      expect(await schedulesOf(optimizer, { ranks: 1 })).toEqual(['DeferredUpdates']);
    }
  });
});
