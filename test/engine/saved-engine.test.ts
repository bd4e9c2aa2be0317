// Tests the content of a save, and the state that each option of a load restores, on one rank.
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import type { LoadOptions } from '../../lib/engine/saving/restore.js';
import { type DsConfig, type Engine, initialize, nn, seed, Tensor, zero } from '../../lib/index.js';
import { cpu } from '../../lib/runtime/device.js';
import { held, noGrad, scope } from '../../lib/tensor/index.js';

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

/** The kinds of state that equal those of `one`, and of `other`. */
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

test('a loaded engine goes on as the saved one', async () => {
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
});
