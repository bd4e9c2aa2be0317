// Tests the content of a save, and the state that each option of a load restores, on one rank.
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import type { ExportWeightsOptions } from '../../lib/engine/saving/checkpointer.js';
import { HostState } from '../../lib/engine/saving/host-state.js';
import type { LoadOptions } from '../../lib/engine/saving/restore.js';
import { jsonObject } from '../../lib/engine/saving/snapshot.js';
import {
  type DsConfig,
  type Engine,
  initialize,
  liveTensors,
  nn,
  optim,
  seed,
  Tensor,
  zero,
} from '../../lib/index.js';
import { cpu } from '../../lib/runtime/device.js';
import { getRandomState, held, noGrad, scope } from '../../lib/tensor/index.js';
import { quiet } from '../support/quiet.js';
import { thrownBy } from '../support/refusal.js';

const dir = mkdtempSync(join(tmpdir(), 'ds-saved-engine-'));
afterAll(() => rmSync(dir, { recursive: true }));
const open: Engine[] = [];
afterEach(() => {
  for (const engine of open.splice(0)) engine.destroy();
});

class Net extends nn.Module {
  readonly first = new nn.Linear(3, 4);
  readonly second = new nn.Linear(4, 1);

  forward(x: Tensor): Tensor {
    return this.second.call(this.first.call(x)).to('f32').square().mean();
  }
}

/** Two groups with rates of their own, and a loss scale that grows in every second step. */
async function engineOf(model: nn.Module = new Net(), more: DsConfig = {}): Promise<Engine> {
  const [bias = [], weight = []] = ['bias', 'weight'].map((name) =>
    [...model.namedParameters()].flatMap(([key, one]) => (key.endsWith(name) ? [one] : [])),
  );
  const { engine } = await initialize({
    model,
    modelParameters: [
      { params: weight.filter((one) => one.requiresGrad), weightDecay: 0.25 },
      { params: bias.filter((one) => one.requiresGrad), weightDecay: 0 },
    ] as never,
    config: {
      train_micro_batch_size_per_gpu: 2,
      fp16: { enabled: true, initial_scale_power: 4, loss_scale_window: 2, hysteresis: 1 },
      optimizer: { type: 'AdamW', params: { lr: 0.05 } },
      scheduler: { type: 'WarmupLR', params: { warmup_max_lr: 0.1, warmup_num_steps: 10 } },
      ...more,
    } as DsConfig,
    device: cpu(),
  });
  open.push(engine);
  return engine;
}

function train(engine: Engine, steps: number): void {
  for (let i = 0; i < steps; ++i) {
    scope(() => {
      const x = Tensor.from([i, 1, 2, 1 - i, 0.5, i / 2], { shape: [2, 3], dtype: 'f16' });
      engine.backward(engine.forward<Tensor>(x));
      engine.step();
    });
  }
}

type Read = (parameter: nn.Parameter) => Tensor | null;

/** The state of an engine by kind. */
function stateOf(engine: Engine) {
  const of = (read: Read): unknown[] =>
    [...engine.module.parameters()].map((parameter) => {
      const tensor = read(parameter);
      const values = tensor && noGrad(() => scope(() => tensor.to('f32').toArray()));
      tensor?.dispose();
      return values;
    });
  const moments = ['exp_avg', 'exp_avg_sq'].flatMap((key) =>
    of((one) => zero.safeGetFullOptimizerState(one, key)),
  );
  engine.synchronize();
  return {
    weights: of((one) => held(() => noGrad(() => one.add(0)))),
    masters: of(zero.safeGetFullFp32Param),
    moments,
    scale: engine.lossScale,
    rates: engine.getLr(),
    steps: [engine.globalSteps, engine.globalSamples],
    decays: engine.optimizer.groups.map((group) => (group as { weightDecay: number }).weightDecay),
  };
}

type State = ReturnType<typeof stateOf>;
const KINDS = ['weights', 'masters', 'moments', 'scale', 'rates', 'steps', 'decays'] as const;

/** The kinds of state that are equal in `found` and `one`, and in `found` and `other`. */
const split = (found: State, one: State, other: State) => {
  const equal = (state: State) =>
    KINDS.filter((kind) => JSON.stringify(found[kind]) === JSON.stringify(state[kind]));
  return { saved: equal(one), own: equal(other) };
};

/** A saved engine, and another one with other values of every kind. */
async function savedAndOther(): Promise<{ saved: State; other: Engine; own: State }> {
  seed(3);
  const engine = await engineOf();
  train(engine, 5);
  for (const group of engine.optimizer.groups) (group as { weightDecay: number }).weightDecay = 0.5;
  await engine.saveCheckpoint(join(dir, 'one'), { clientState: { a: [1] } });
  const saved = stateOf(engine);
  seed(4);
  const other = await engineOf();
  train(other, 2);
  return { saved, other, own: stateOf(other) };
}

const HOST = ['scale', 'rates', 'steps', 'decays'];

test.each<[options: LoadOptions, saved: string[]]>([
  [{}, [...KINDS]],
  [{ loadModuleOnly: true }, ['weights', 'masters']],
  [{ loadModuleOnly: true, loadOptimizerStates: true }, ['weights', 'masters']],
  [{ loadOptimizerStates: false }, ['weights', 'masters', 'rates', 'steps']],
  [{ loadLrSchedulerStates: false }, ['weights', 'masters', 'moments', 'scale', 'steps', 'decays']],
])('a load with %j restores %j', async (options, kinds) => {
  const { saved, other, own } = await savedAndOther();
  const loaded = await other.loadCheckpoint(join(dir, 'one'), options);
  expect(loaded).toMatchObject({ tag: 'global_step5', clientState: { a: [1] } });
  expect(split(stateOf(other), saved, own).saved).toEqual(kinds);
});

test('the values that a load does not restore stay as they are', async () => {
  const { saved, other, own } = await savedAndOther();
  expect(split(own, saved, own).saved).toEqual([]);
  await other.loadCheckpoint(join(dir, 'one'), { loadModuleOnly: true });
  expect(split(stateOf(other), saved, own).own).toEqual(['moments', ...HOST]);
});

test('a load of another dtype releases the values that it converts', async () => {
  const of = (more: object) => {
    const net = new Net();
    net.first.requiresGrad_(false);
    return engineOf(net, { fp16: { enabled: false }, scheduler: undefined, ...more } as never);
  };
  const saved = await of({ bf16: { enabled: true } });
  await saved.saveCheckpoint(join(dir, 'narrow'));
  const other = await of({});
  await quiet();
  const live: number[] = [];
  for (let i = 0; i < 3; i++) {
    await other.loadCheckpoint(join(dir, 'narrow'), { loadModuleOnly: true });
    live.push(liveTensors());
  }
  expect(live).toEqual([live[0], live[0], live[0]]);
  expect(stateOf(other).weights.slice(0, 2)).toEqual(stateOf(saved).weights.slice(0, 2));
});

test('a loaded engine continues like the saved one', async () => {
  seed(3);
  const engine = await engineOf();
  train(engine, 3);
  await engine.saveCheckpoint(join(dir, 'on'));
  train(engine, 3);
  seed(4);
  const other = await engineOf();
  await other.loadCheckpoint(join(dir, 'on'));
  train(other, 3);
  expect(stateOf(other)).toEqual(stateOf(engine));
});

test('gradients that wait for a step are dropped by a load', async () => {
  seed(3);
  const engine = await engineOf(new Net(), { gradient_accumulation_steps: 2 });
  await engine.saveCheckpoint(join(dir, 'waiting'));
  const micro = () =>
    scope(() => {
      const x = Tensor.from([1, 2, 3, 4, 5, 6], { shape: [2, 3], dtype: 'f16' });
      engine.backward(engine.forward<Tensor>(x));
      engine.step();
    });
  micro();
  await engine.loadCheckpoint(join(dir, 'waiting'));
  micro();
  expect(engine.globalSteps).toBe(0);
  micro();
  expect(engine.globalSteps).toBe(1);
});

test('frozen parameters are saved, unless they are excluded', async () => {
  const make = async (start: number): Promise<Engine> => {
    seed(start);
    const net = new Net();
    net.first.requiresGrad_(false);
    return engineOf(net);
  };
  const engine = await make(3);
  await engine.saveCheckpoint(join(dir, 'whole'), { tag: 'a' });
  await engine.saveCheckpoint(join(dir, 'part'), { tag: 'a', excludeFrozenParameters: true });
  const other = await make(4);
  const own = stateOf(other).weights;
  const saved = stateOf(engine).weights;
  await other.loadCheckpoint(join(dir, 'part'));
  expect(stateOf(other).weights).toEqual([...own.slice(0, 2), ...saved.slice(2)]);
  await other.loadCheckpoint(join(dir, 'whole'));
  expect(stateOf(other).weights).toEqual(saved);
  const namesIn = async (options?: ExportWeightsOptions): Promise<string[]> => {
    const file = readFileSync(await engine.save16bitModel(dir, 'w.safetensors', options));
    const header = file.subarray(8, 8 + Number(file.readBigUInt64LE()));
    return Object.keys(JSON.parse(String(header))).filter((name) => name.endsWith('weight'));
  };
  expect(await namesIn()).toEqual(['first.weight', 'second.weight']);
  expect(await namesIn({ excludeFrozenParameters: false })).toHaveLength(2);
  expect(await namesIn({ excludeFrozenParameters: true })).toEqual(['second.weight']);
});

describe('the state of an engine without tensors', () => {
  /** An engine of rank `rank` of `size`, with a companion and one group. */
  function hostOf(rank = 0, size = 1) {
    const optimizer = new optim.AdamW(new nn.Linear(2, 2).parameters(), { lr: 0.1 });
    Object.assign(optimizer.groups[0] as object, { flag: true, kind: 'own' });
    const kept: Record<string, unknown> = {};
    const stateful = (name: string) => ({
      stateDict: () => ({ of: name }),
      loadStateDict: (state: unknown) => {
        if ((state as { bad?: string }).bad) throw new Error('a state of mine');
        kept[name] = state;
      },
    });
    const load = (name: string) => (state: unknown) => {
      kept[name] = state;
    };
    const engine = {
      progress: {
        globalSteps: 9,
        globalSamples: 9,
        skippedSteps: 9,
        appliedSteps: 9,
        scheduleStart: 9,
      },
      companions: new Map([['loader', stateful('loader')]]),
      parts: {
        optimizer,
        schedules: stateful('schedules'),
        stage: { partitions: [] },
        scaler: { state: () => 'own scale', load: load('scaler') },
        curriculum: { state: () => 'own lengths', load: load('curriculum') },
        ranks: { dataGroup: { rank, size } },
      },
    };
    return { engine, kept, optimizer, host: new HostState(engine as never) };
  }

  const progress = {
    globalSteps: 5,
    globalSamples: 20,
    skippedSteps: 1,
    appliedSteps: 4,
    scheduleStart: 1,
  };
  const savedOf = (group: object, seeds: number[] = [7], companions: object[] = []) =>
    ({
      location: 'MANIFEST',
      shared: {
        progress,
        scaler: 'scale',
        schedule: 'rates',
        groups: [group],
        clientState: {},
        curriculum: 'lengths',
      },
      ranks: seeds.map((one, i) => ({
        random: { seed: one, offset: 3 + i },
        companions: companions[i] ?? { loader: { at: i } },
      })),
    }) as never;
  const all = { optimizer: true, schedules: true, companions: true, counters: true };
  const nothing = { optimizer: false, schedules: false, companions: false, counters: false };

  test('is restored as far as requested, and can be reset', () => {
    seed(42);
    const { engine, kept, optimizer, host } = hostOf();
    const before = getRandomState();
    host.load(savedOf({ lr: 0.5, unknown: 1 }), all);
    expect(kept).toEqual({
      scaler: 'scale',
      schedules: 'rates',
      curriculum: 'lengths',
      loader: { at: 0 },
    });
    expect([engine.progress, optimizer.groups[0]?.lr]).toEqual([progress, 0.5]);
    expect(optimizer.groups[0]).not.toHaveProperty('unknown');
    expect(getRandomState()).toEqual({ seed: 7, offset: 3 });
    host.restore();
    expect(kept).toEqual({
      scaler: 'own scale',
      schedules: { of: 'schedules' },
      curriculum: 'own lengths',
      loader: { of: 'loader' },
    });
    expect([engine.progress.globalSteps, optimizer.groups[0]?.lr]).toEqual([9, 0.1]);
    expect(getRandomState()).toEqual(before);
    const other = hostOf();
    const then = getRandomState();
    other.host.load(savedOf({ lr: 0.5 }), nothing);
    expect([other.kept, other.engine.progress.globalSteps]).toEqual([{}, 9]);
    expect(getRandomState()).toEqual(then);
  });

  test('counts updates from 0 without moments, and schedules from their own start', () => {
    const loadCounters = (wanted: object) => {
      const { engine, host } = hostOf();
      host.load(savedOf({}), { ...nothing, counters: true, ...wanted });
      return [engine.progress.appliedSteps, engine.progress.scheduleStart];
    };
    expect(loadCounters({ optimizer: true, schedules: true })).toEqual([4, 1]);
    expect(loadCounters({ optimizer: true })).toEqual([4, 4]);
    expect(loadCounters({ schedules: true })).toEqual([0, -3]);
    expect(loadCounters({})).toEqual([0, 0]);
  });

  test('gives further ranks seeds of their own, unless all ranks had one', () => {
    const randomOf = (rank: number, size: number, seeds: number[]) => {
      hostOf(rank, size).host.load(savedOf({}, seeds), { ...nothing, counters: true });
      return getRandomState();
    };
    expect(randomOf(1, 2, [7, 8])).toEqual({ seed: 8, offset: 4 });
    expect(randomOf(3, 4, [7, 8])).toEqual({ seed: 8 + 1_000_003, offset: 4 });
    expect(randomOf(4, 8, [7, 8])).toEqual({ seed: 7 + 2 * 1_000_003, offset: 3 });
    expect(randomOf(3, 4, [7, 7])).toEqual({ seed: 7, offset: 4 });
    const largest = Number.MAX_SAFE_INTEGER;
    expect(randomOf(2, 3, [largest - 1_000_003, 1])).toEqual({ seed: 0, offset: 3 });
  });

  test('takes the companions of its rank, of the first one among other ranks', () => {
    const companionsOf = (rank: number, size: number, states: object[]) => {
      const { kept, host } = hostOf(rank, size);
      host.load(savedOf({}, [1, 2], states), { ...nothing, companions: true });
      return kept;
    };
    const states = [{ loader: { at: 0 } }, { loader: { at: 1 } }];
    expect(companionsOf(1, 2, states)).toEqual({ loader: { at: 1 } });
    expect(companionsOf(1, 3, states)).toEqual({ loader: { at: 0 } });
    expect(companionsOf(0, 2, [{ other: {} }])).toEqual({});
    expect(thrownBy(() => companionsOf(1, 2, [{}, { loader: { bad: 'x' } }]))).toMatchObject({
      code: 'DS_CHECKPOINT',
      op: 'MANIFEST: ranks[1].companions.loader',
      expected: 'a valid state',
      got: 'Error: a state of mine',
    });
  });

  test.each<[group: object, field: string, expected: string]>([
    [{ lr: -0.1 }, 'lr', 'a number from 0'],
    [{ lr: 'x' }, 'lr', 'a number from 0'],
    [{ eps: -1 }, 'eps', 'a number from 0'],
    [{ weightDecay: -1 }, 'weightDecay', 'a number from 0'],
    [{ betas: 0.5 }, 'betas', 'a list'],
    [{ betas: [0.5] }, 'betas', 'a list of 2'],
    [{ betas: [0.5, 1.5] }, 'betas[1]', 'a number from 0 to 1'],
    [{ betas: [-0.5, 0.5] }, 'betas[0]', 'a number from 0 to 1'],
    [{ betas: [0.5, 'x'] }, 'betas[1]', 'a finite number'],
    [{ flag: 1 }, 'flag', 'true or false'],
    [{ kind: 3 }, 'kind', 'text'],
  ])('refuses %j', (group, field, expected) => {
    const error = thrownBy(() => hostOf().host.load(savedOf(group), all));
    expect(error).toMatchObject({ code: 'DS_CHECKPOINT', expected });
    expect(error.message).toContain(`state.groups[0].${field}`);
  });

  test('takes hyperparameters at their limits', () => {
    const { optimizer, host } = hostOf();
    host.load(savedOf({ lr: 0, eps: 0, weightDecay: 0, betas: [0, 1] }), all);
    expect(optimizer.groups[0]).toMatchObject({ lr: 0, eps: 0, weightDecay: 0, betas: [0, 1] });
  });
});

describe('client state', () => {
  const toClientState = (value: unknown) => jsonObject('clientState', value, '{ epoch: 3 }');

  test('is what JSON stores of it', () => {
    const date = new Date(0);
    const own = { a: 1, toJSON: () => ({ said: [date, { toJSON: () => 3 }] }) };
    const shared = { b: null };
    expect(toClientState({ own, one: shared, two: [shared, 'x', true], gone: undefined })).toEqual({
      own: { said: ['1970-01-01T00:00:00.000Z', 3] },
      one: { b: null },
      two: [{ b: null }, 'x', true],
    });
    const itself = { a: 1, toJSON: () => itself };
    expect(toClientState({ itself, nothing: { toJSON: () => undefined } })).toEqual({
      itself: { a: 1 },
    });
    const names: string[] = [];
    const speaker = { toJSON: (name: string) => void names.push(name) };
    toClientState({ first: speaker, list: { second: speaker } });
    expect(names).toEqual(['first', 'second']);
  });

  const deep = (levels: number): object => {
    const top: { a?: object } = {};
    let at = top;
    for (let i = 1; i < levels; i++) at = at.a = {};
    return top;
  };
  class Own {}
  const circle: { a?: unknown } = {};
  circle.a = [circle];

  test.each<[value: unknown, op: string, got: string]>([
    [{ a: Number.NaN }, 'clientState.a', 'NaN'],
    [{ a: [1, Number.POSITIVE_INFINITY] }, 'clientState.a[1]', 'Infinity'],
    [{ a: () => 1 }, 'clientState.a', 'a function'],
    [{ a: { b: 1n } }, 'clientState.a.b', 'a bigint'],
    [{ a: new Map() }, 'clientState.a', 'a Map'],
    [{ a: new Own() }, 'clientState.a', 'a Own'],
    [{ a: new Float32Array(2) }, 'clientState.a', 'a Float32Array'],
    [{ a: new Date(Number.NaN) }, 'clientState.a', 'an invalid Date'],
    [{ a: [{ toJSON: () => undefined }] }, 'clientState.a[0]', 'a toJSON() that returns undefined'],
    [circle, 'clientState.a[0]', 'an object that contains itself'],
    [[1], 'clientState', 'an array'],
    [null, 'clientState', 'null'],
    ['x', 'clientState', '"x"'],
  ])('of another kind is refused: case %#', (value, op, got) => {
    expect(thrownBy(() => toClientState(value))).toMatchObject({ code: 'DS_ARGUMENT', op, got });
  });

  test('has a bound of depth, and errors a bound of length', () => {
    expect(Object.keys(toClientState(deep(1000)))).toEqual(['a']);
    const error = thrownBy(() => toClientState(deep(1001)));
    expect(error).toMatchObject({
      got: 'a deeper object',
      expected: 'at most 1000 levels of nested objects',
    });
    expect(error.op).toBe(`${`clientState${'.a'.repeat(100)}`.slice(0, 120)}...`);
    const long = 'x'.repeat(120 - 'clientState.'.length);
    expect(thrownBy(() => toClientState({ [long]: 1n })).op).toBe(`clientState.${long}`);
    expect(thrownBy(() => toClientState({ [`${long}y`]: 1n })).op).toBe(`clientState.${long}...`);
  });
});
