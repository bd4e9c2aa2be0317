// Tests which state loadCheckpoint() restores, keeps and refuses.
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import {
  type DsConfig,
  type Engine,
  findLatest,
  initialize,
  nn,
  seed,
  Tensor,
} from '../../lib/index.js';

let dir: string;
let engines: Engine[];
beforeEach(() => {
  dir = mkdtempSync(join(tmpdir(), 'ds-restore-'));
  engines = [];
});
afterEach(() => {
  for (const engine of engines) engine.destroy();
  rmSync(dir, { recursive: true, force: true });
});

function refusal(message: RegExp) {
  return expect.objectContaining({
    code: 'DS_CHECKPOINT',
    message: expect.stringMatching(message),
  });
}

class Small extends nn.Module {
  readonly first: nn.Linear;
  readonly second: nn.Linear | null;
  readonly shift = Tensor.from([1, 2, 3]).keep();

  constructor(width: number, depth: number) {
    super();
    this.first = new nn.Linear(3, width);
    this.second = depth > 1 ? new nn.Linear(width, 2) : null;
  }

  forward(x: Tensor): Tensor {
    const hidden = this.first.call(x.add(this.shift.to(x.dtype)));
    return (this.second ? this.second.call(hidden) : hidden).square().mean().to('f32');
  }
}

interface Options {
  width?: number;
  depth?: number;
  optimizer?: 'AdamW' | 'Lion' | 'Adagrad';
  bf16?: boolean;
  fp16?: boolean;
  freeze?: boolean;
  /** Default: WarmupLR. */
  scheduler?: null;
  /** Puts the matrices into a separate parameter group. */
  groups?: boolean;
  /** Micro-batches per step. */
  micros?: number;
}

const warmup: DsConfig['scheduler'] = {
  type: 'WarmupLR',
  params: { warmup_min_lr: 0, warmup_max_lr: 1e-2, warmup_num_steps: 10, warmup_type: 'linear' },
};

async function start(from: number, options: Options = {}) {
  const { width = 5, depth = 2, optimizer = 'AdamW', bf16 = false, freeze = false } = options;
  const { fp16 = false, scheduler, groups = false, micros = 1 } = options;
  seed(from);
  const model = new Small(width, depth);
  if (freeze) model.first.weight.requireGrad(false);
  const config: DsConfig = {
    train_batch_size: 2 * micros,
    gradient_accumulation_steps: micros,
    optimizer: { type: optimizer, params: { lr: 1e-2 } },
    scheduler: scheduler === null ? undefined : warmup,
    bf16: { enabled: bf16 },
    fp16: { enabled: fp16, initial_scale_power: 4 },
  };
  const all = model.parameters();
  const isMatrix = (p: nn.Parameter) => p.ndim > 1;
  const split = [{ params: all.filter(isMatrix) }, { params: all.filter((p) => !isMatrix(p)) }];
  const modelParameters = groups ? split : all;
  const { engine } = await initialize({ model, config, modelParameters, device: 'cpu' });
  engines.push(engine);
  return { engine, model };
}

function train(engine: Engine, steps: number): void {
  const { bf16, fp16 } = engine.config;
  const dtype = bf16.enabled ? 'bf16' : fp16.enabled ? 'f16' : 'f32';
  for (let step = 0; step < steps; ++step) {
    const x = Tensor.from([[1, step, -1]], { dtype });
    for (let micro = 0; micro < engine.gradientAccumulationSteps(); ++micro) {
      engine.backward(engine.forward<Tensor>(x));
      engine.step();
    }
    x.dispose();
  }
  engine.synchronize();
}

const weights = ({ module }: Engine) => [...module.namedParameters()].map(([, p]) => p.toArray());

async function saveEngine(options: Options = {}): Promise<Engine> {
  const { engine, model } = await start(1, options);
  model.shift.buffer.write(0, Float32Array.from([7, 8, 9]));
  train(engine, 4);
  await engine.saveCheckpoint(dir, { tag: 't', clientState: { epoch: 3 } });
  return engine;
}

test('loadCheckpoint() restores everything by default', async () => {
  const first = await saveEngine();
  const { engine, model } = await start(2);
  train(engine, 7);
  const loaded = await engine.loadCheckpoint(dir);
  expect(loaded).toEqual({ path: join(dir, 't'), tag: 't', clientState: { epoch: 3 } });
  expect(engine.progress).toEqual(first.progress);
  expect(engine.getLr()).toEqual(first.getLr());
  expect(model.shift.toArray()).toEqual([7, 8, 9]);
  for (const one of [first, engine]) train(one, 3);
  expect(weights(engine)).toEqual(weights(first));
});

/** A block shares its bias with a layer that comes before it in the model. */
class Tied extends nn.Module {
  readonly first = new nn.Linear(3, 3);
  readonly shift: nn.Parameter;
  readonly blocks = [new nn.Linear(3, 3), new nn.Linear(3, 3)];

  constructor() {
    super();
    const { bias } = this.blocks[1] as nn.Linear;
    this.shift = bias as nn.Parameter;
  }

  forward(x: Tensor): Tensor {
    let hidden = this.first.call(x).add(this.shift).tanh();
    for (const block of this.blocks) hidden = block.call(hidden).tanh();
    return hidden.square().mean();
  }
}

test.each([0, 3] as const)('state of a parameter tied across units, stage %d', async (stage) => {
  const makeEngine = async (from: number): Promise<() => number> => {
    seed(from);
    const { engine } = await initialize({
      model: new Tied(),
      device: 'cpu',
      config: {
        train_micro_batch_size_per_gpu: 2,
        optimizer: { type: 'AdamW', params: { lr: 1e-2 } },
        zero_optimization: { stage },
      },
    });
    engines.push(engine);
    const x = Tensor.from([1, 2, 3, -2, 1, 0], { shape: [2, 3] }).keep();
    return () => {
      const loss = engine.forward(x);
      engine.backward(loss);
      engine.step();
      return loss.item();
    };
  };
  const step = await makeEngine(1);
  step();
  await engines[0]?.saveCheckpoint(dir);
  const after = await makeEngine(2);
  await engines[1]?.loadCheckpoint(dir);
  expect([after(), after(), after()]).toEqual([step(), step(), step()]);
});

test('the error of a thawed parameter without saved state names the fix', async () => {
  const makeEngine = async (frozen: boolean): Promise<Engine> => {
    const model = new nn.Linear(3, 3);
    (model.bias as nn.Parameter).requireGrad(!frozen);
    const optimizer = { type: 'AdamW' } as const;
    const config = { train_micro_batch_size_per_gpu: 2, optimizer };
    const { engine } = await initialize({ model, device: 'cpu', config });
    engines.push(engine);
    return engine;
  };
  await (await makeEngine(true)).saveCheckpoint(dir);
  const thawed = await makeEngine(false);
  await expect(thawed.loadCheckpoint(dir)).rejects.toThrow(
    /bias: expected fp32.*got no optimizer state\. It was not trained then.*loadOptimizerStates: false/,
  );
  await thawed.loadCheckpoint(dir, { loadOptimizerStates: false });
});

test('loadModuleOnly: the weights and buffers, and nothing else', async () => {
  const first = await saveEngine();
  const { engine, model } = await start(2);
  train(engine, 2);
  const before = [{ ...engine.progress }, engine.getLr()];
  const { clientState } = await engine.loadCheckpoint(dir, { loadModuleOnly: true });
  expect(clientState).toEqual({ epoch: 3 });
  expect(weights(engine)).toEqual(weights(first));
  expect(model.shift.toArray()).toEqual([7, 8, 9]);
  expect([engine.progress, engine.getLr()]).toEqual(before);
});

test('loadOptimizerStates: false starts moments afresh, while counters and schedule go on', async () => {
  const first = await saveEngine();
  const { engine } = await start(2);
  await engine.loadCheckpoint(dir, { loadOptimizerStates: false });
  expect(weights(engine)).toEqual(weights(first));
  expect(engine.globalSteps).toBe(4);
  expect(engine.progress).toMatchObject({ appliedSteps: 0, scheduleStart: -4 });
  expect(engine.getLr()).toEqual(first.getLr());
  for (const one of [first, engine]) train(one, 1);
  expect(engine.getLr()).toEqual(first.getLr());
  expect(weights(engine)).not.toEqual(weights(first));
});

test('loadLrSchedulerStates: false starts the schedule afresh, while the moments go on', async () => {
  const first = await saveEngine();
  const { engine } = await start(2);
  const [fresh] = engine.getLr();
  await engine.loadCheckpoint(dir, { loadLrSchedulerStates: false });
  expect(engine.progress).toMatchObject({ appliedSteps: 4, scheduleStart: 4 });
  expect(engine.getLr()).toEqual([fresh]);
  expect(engine.getLr()).not.toEqual(first.getLr());
  await engine.saveCheckpoint(dir, { tag: 'u' });
  const { engine: third } = await start(3);
  await third.loadCheckpoint(dir);
  train(third, 2);
  train(engine, 2);
  expect(third.getLr()).toEqual(engine.getLr());
  expect(weights(third)).toEqual(weights(engine));
});

test('a bf16 checkpoint continues in fp32 from its master weights, and back', async () => {
  const first = await saveEngine({ bf16: true });
  const { engine } = await start(2);
  await engine.loadCheckpoint(dir);
  const { engine: again } = await start(3, { bf16: true });
  await engine.saveCheckpoint(dir, { tag: 'wide' });
  await again.loadCheckpoint(dir, { tag: 'wide' });
  for (const engine of [first, again]) train(engine, 2);
  expect(weights(again)).toEqual(weights(first));
});

test('a checkpoint without loss scaling continues in fp16 at the initial scale, and back', async () => {
  const first = await saveEngine({ bf16: true });
  const { engine } = await start(2, { fp16: true });
  await engine.loadCheckpoint(dir);
  expect(engine.lossScale).toBe(16);
  expect(engine.progress).toEqual(first.progress);
  const { engine: again } = await start(3, { bf16: true });
  await engine.saveCheckpoint(dir, { tag: 'half' });
  await again.loadCheckpoint(dir, { tag: 'half' });
  for (const engine of [first, again]) train(engine, 2);
  expect(weights(again)).toEqual(weights(first));
});

test('trained parameters may be frozen; frozen ones may be trained without states', async () => {
  const first = await saveEngine({ bf16: true });
  const { engine } = await start(2, { bf16: true, freeze: true });
  await engine.loadCheckpoint(dir);
  expect(weights(engine)).toEqual(weights(first));
  await engine.saveCheckpoint(dir, { tag: 'frozen' });
  const { engine: third } = await start(3, { bf16: true });
  await expect(third.loadCheckpoint(dir)).rejects.toEqual(
    refusal(/first.weight: expected fp32, exp_avg, exp_avg_sq.*got no optimizer state/),
  );
  await third.loadCheckpoint(dir, { loadOptimizerStates: false });
  expect(weights(third)).toEqual(weights(first));
});

test('weights frozen in fp32 get the master weights of a bf16 run', async () => {
  await saveEngine({ bf16: true });
  const { engine: frozen } = await start(2, { freeze: true });
  const { engine: trained } = await start(3);
  for (const engine of [frozen, trained]) await engine.loadCheckpoint(dir, { tag: 't' });
  expect(weights(frozen)).toEqual(weights(trained));
});

describe('refusals leave the engine as it was', () => {
  test.each<[string, Options, RegExp]>([
    [
      'a wider model',
      { width: 6 },
      /first.weight: expected \[6, 3\] f32, got \[5, 3\] f32.*another model/,
    ],
    ['a shallower model', { depth: 1 }, /got 2 more, "second.weight" among them/],
    [
      'another optimizer with fewer states',
      { optimizer: 'Lion' },
      /the state of Lion.*got .*exp_avg_sq/,
    ],
    ['another optimizer', { optimizer: 'Adagrad' }, /Adagrad.*loadOptimizerStates: false/],
    ['other groups', { groups: true }, /expected 2 parameter groups, got 1.*loadOptimizerStates/],
    [
      'no schedule',
      { scheduler: null },
      /state of 0 schedules, got the state of 1.*loadLrScheduler/,
    ],
  ])('%s', async (_name, options, message) => {
    await saveEngine();
    const { engine } = await start(2, options);
    train(engine, 1);
    const before = [weights(engine), { ...engine.progress }];
    await expect(engine.loadCheckpoint(dir)).rejects.toEqual(refusal(message));
    expect([weights(engine), engine.progress]).toEqual(before);
  });

  test('a deeper model', async () => {
    await saveEngine({ depth: 1 });
    const { engine } = await start(2);
    await expect(engine.loadCheckpoint(dir)).rejects.toEqual(
      refusal(/second.weight: .*without 2 of this model's tensors/),
    );
  });
});

test('loadModuleStrict: false loads the common tensors, in both directions', async () => {
  const first = await saveEngine({ depth: 1 });
  const { engine } = await start(2);
  const [, , ...second] = weights(engine);
  await engine.loadCheckpoint(dir, { loadModuleStrict: false });
  expect(weights(engine)).toEqual([...weights(first), ...second]);
  await engine.saveCheckpoint(dir, { tag: 'deep' });
  const { engine: shallow } = await start(3, { depth: 1 });
  await shallow.loadCheckpoint(dir, { loadModuleStrict: false });
  expect(weights(shallow)).toEqual(weights(first));
});

describe('gradients since the last step belong to the run before the load', () => {
  type Pending = [string, (engine: Engine, x: Tensor) => void];

  test.each<Pending>([
    ['of an unfinished accumulation', (engine, x) => engine.backward(engine.forward<Tensor>(x))],
    [
      'of a loss.backward() without its epilogue',
      (engine, x) => engine.scale(engine.forward<Tensor>(x)).backward(),
    ],
    ['of a scaled loss', (engine, x) => void engine.scale(engine.forward<Tensor>(x))],
    [
      'handed over to step()',
      (engine, x) => {
        engine.backward(engine.forward<Tensor>(x));
        engine.backward(engine.forward<Tensor>(x));
      },
    ],
  ])('%s', async (_name, pend) => {
    const { engine: first } = await start(1, { fp16: true, micros: 2 });
    train(first, 2);
    await first.saveCheckpoint(dir, { tag: 't' });
    const { engine } = await start(2, { fp16: true, micros: 2 });
    train(engine, 1);
    const x = Tensor.from([[5, -7, 9]], { dtype: 'f16' });
    pend(engine, x);
    await engine.loadCheckpoint(dir);
    x.dispose();
    for (const one of [first, engine]) train(one, 3);
    expect(weights(engine)).toEqual(weights(first));
    expect(engine.progress).toEqual(first.progress);
  });

  test('stay if the load is refused', async () => {
    await saveEngine();
    const { engine } = await start(2);
    const x = Tensor.from([[1, 2, 3]]);
    engine.backward(engine.forward<Tensor>(x));
    await expect(engine.loadCheckpoint(dir, { tag: 'none' })).rejects.toThrow();
    engine.step();
    expect(engine.globalSteps).toBe(1);
    x.dispose();
  });
});

test('findLatest() finds a checkpoint to resume from, or returns null', async () => {
  expect(await findLatest(join(dir, 'none'))).toBeNull();
  expect(await findLatest(dir)).toBeNull();
  const { engine } = await start(1);
  await expect(engine.loadCheckpoint(dir)).rejects.toEqual(
    refusal(/"latest".*without checkpoints/),
  );
  await engine.saveCheckpoint(dir);
  expect(await findLatest(dir)).toBe('global_step0');
});
