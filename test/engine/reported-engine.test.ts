// Tests the readings of an engine: sizes, counters, and the state at the start.
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { describeState } from '../../lib/engine/watch/dump-state.js';
import {
  type DsConfig,
  type Engine,
  initialize,
  nn,
  scaleJointLoss,
  Tensor,
} from '../../lib/index.js';
import { cpu } from '../../lib/runtime/device.js';
import { scope } from '../../lib/tensor/index.js';
import { thrownBy } from '../support/refusal.js';

class Net extends nn.Module {
  readonly first = new nn.Linear(3, 4);
  readonly second = new nn.Linear(4, 1, { bias: false });

  forward(x: Tensor): Tensor {
    return this.second.call(this.first.call(x)).to('f32').square().mean();
  }
}

const open: Engine[] = [];
afterEach(() => {
  jest.restoreAllMocks();
  for (const engine of open.splice(0)) engine.destroy();
});

async function engineOf(more: DsConfig = {}, model: nn.Module = new Net()): Promise<Engine> {
  const { engine } = await initialize({
    model,
    config: {
      train_micro_batch_size_per_gpu: 2,
      gradient_accumulation_steps: 2,
      gradient_clipping: 0.5,
      steps_per_print: 7,
      optimizer: { type: 'AdamW', params: { lr: 0.05 } },
      ...more,
    } as DsConfig,
    device: cpu(),
  });
  open.push(engine);
  return engine;
}

const input = (dtype: 'f32' | 'f16' = 'f32', fill = 1): Tensor =>
  Tensor.from([fill, 1, 2, -1, 0.5, 3], { shape: [2, 3], dtype });

function micro(engine: Engine, x?: () => Tensor): void {
  scope(() => {
    engine.backward(engine.forward<Tensor>(x ? x() : input()));
    engine.step();
  });
}

test('its sizes and settings are those of the configuration', async () => {
  const engine = await engineOf({ zero_optimization: { stage: 2 } });
  expect([
    ...[engine.trainBatchSize(), engine.trainMicroBatchSizePerGpu()],
    ...[engine.gradientAccumulationSteps(), engine.gradientClipping(), engine.stepsPerPrint()],
    ...[engine.zeroOptimizationStage(), engine.worldSize, engine.globalRank, engine.localRank],
    ...[engine.dpWorldSize, engine.dpRank, engine.lossScale],
    ...[engine.curriculumSeqlen, engine.pldTheta],
  ]).toEqual([4, 2, 2, 0.5, 7, 2, 1, 0, 0, 1, 0, 1, null, null]);
  expect(engine.device).toBe(cpu());
});

test('its counters follow the steps, and its last norm and loss are those of the step', async () => {
  const engine = await engineOf();
  expect([engine.getGlobalGradNorm(), engine.getGlobalLoss(), engine.wasStepApplied()]).toEqual([
    null,
    null,
    false,
  ]);
  expect(engine.getLr()).toEqual([0.05]);
  micro(engine);
  expect([engine.globalSteps, engine.globalSamples, engine.wasStepApplied()]).toEqual([
    0,
    0,
    false,
  ]);
  micro(engine);
  expect([engine.globalSteps, engine.globalSamples, engine.skippedSteps]).toEqual([1, 4, 0]);
  expect(engine.getGlobalGradNorm()).toBeGreaterThan(0);
  expect(engine.getGlobalLoss()).toBeGreaterThan(0);
  expect(engine.wasStepApplied()).toBe(true);
  micro(engine);
  // A micro-batch before the boundary updates nothing.
  expect(engine.wasStepApplied()).toBe(false);
});

test('a step with a non-finite gradient is skipped and counted', async () => {
  const engine = await engineOf({
    gradient_accumulation_steps: 1,
    fp16: { enabled: true, initial_scale_power: 4, hysteresis: 1 },
  });
  expect(engine.lossScale).toBe(16);
  micro(engine, () => input('f16', 60_000));
  expect([engine.skippedSteps, engine.wasStepApplied(), engine.lossScale]).toEqual([1, false, 8]);
  micro(engine, () => input('f16'));
  expect([engine.skippedSteps, engine.wasStepApplied(), engine.globalSteps]).toEqual([1, true, 2]);
});

test('times of phases are available after they are recorded', async () => {
  const engine = await engineOf({ gradient_accumulation_steps: 1 });
  micro(engine);
  expect(engine.phaseTimes()).toBeNull();
  engine.recordPhases();
  micro(engine);
  expect(Object.keys(engine.phaseTimes() ?? {}).sort()).toEqual([
    'backward',
    'forward',
    'reduce',
    'step',
  ]);
});

test('a decision has the busy time of each rank once these are shared', async () => {
  const engine = await engineOf({ gradient_accumulation_steps: 1 });
  const { watch, stepDecisions } = engine.parts;
  micro(engine);
  expect(stepDecisions.last?.busy).toBeNull();
  watch.share(engine.device);
  watch.busy = 5;
  micro(engine);
  expect(stepDecisions.last?.busy).toEqual([5]);
});

test('loss.backward() needs the factor of the loss scale', async () => {
  const engine = await engineOf({ fp16: { enabled: true, initial_scale_power: 4 } });
  const backward = (by: (loss: Tensor) => Tensor) =>
    scope(() => by(engine.forward<Tensor>(input('f16'))).backward());
  expect(thrownBy(() => backward((loss) => loss))).toMatchObject({
    code: 'DS_AUTOGRAD',
    op: 'loss.backward',
    got: 'an unscaled loss',
    expected: 'a loss times the loss scale, 16',
    hint: 'Write engine.scale(loss).backward(), or engine.backward(loss).',
  });
  engine.zeroGrad();
  backward((loss) => engine.scale(loss));
  engine.backwardEpilogue();
  expect(thrownBy(() => backward((loss) => loss)).got).toBe('an unscaled loss');
});

test('a joint loss has the smallest scale; each engine then knows it', async () => {
  const half = (power: number) =>
    engineOf({
      gradient_accumulation_steps: 1,
      fp16: { enabled: true, initial_scale_power: power },
    });
  const [a, b] = [await half(6), await half(3)];
  scope(() => {
    const sum = a.forward<Tensor>(input('f16')).add(b.forward<Tensor>(input('f16')));
    const scaled = scaleJointLoss(sum, [a, b]);
    expect(scaled.item() / sum.item()).toBeCloseTo(8, 5);
    scaled.backward();
  });
  for (const engine of [a, b]) {
    engine.backwardEpilogue();
    engine.step();
    expect([engine.globalSteps, engine.wasStepApplied()]).toEqual([1, true]);
  }
  const plain = await engineOf();
  const loss = scope(() => plain.forward<Tensor>(input()));
  expect(scaleJointLoss(loss, [plain])).toBe(loss);
  expect(plain.scale(loss)).toBe(loss);
  for (const engines of [[], null as never, plain as never]) {
    expect(thrownBy(() => scaleJointLoss(loss, engines))).toMatchObject({
      code: 'DS_ARGUMENT',
      op: 'scaleJointLoss',
      expected: 'a list of engines',
    });
  }
  for (const factor of [0, -1, Number.NaN, Number.POSITIVE_INFINITY]) {
    expect(thrownBy(() => plain.expectScaled(factor)).expected).toBe('a finite number above 0');
  }
});

test('a loss is one f32 element of a tensor', async () => {
  const engine = await engineOf();
  expect(thrownBy(() => engine.backward(3 as never))).toMatchObject({
    code: 'DS_ARGUMENT',
    op: 'engine.backward',
    expected: 'a loss: the tensor that forward() has computed',
  });
  const bad = [Tensor.from([1, 2]), Tensor.from([1], { dtype: 'f16' })];
  for (const loss of bad) {
    for (const call of ['backward', 'scale'] as const) {
      expect(thrownBy(() => engine[call](loss))).toMatchObject({
        code: 'DS_SHAPE',
        op: `engine.${call}`,
        expected: 'a loss of one f32 element',
        got: `[${loss.shape}] ${loss.dtype}`,
      });
    }
    loss.dispose();
  }
});

test('results of forwards live until the next step begins, or the next evaluation', async () => {
  const engine = await engineOf({ gradient_accumulation_steps: 1 });
  const x = input();
  const isGone = (loss: Tensor): boolean => {
    try {
      loss.item();
      return false;
    } catch {
      return true;
    }
  };
  const one = engine.forward<Tensor>(x);
  const two = engine.forward<Tensor>(x);
  engine.backward(two);
  engine.step();
  expect([isGone(one), isGone(two)]).toEqual([false, false]);
  const next = engine.forward<Tensor>(x);
  expect([isGone(one), isGone(two), isGone(next)]).toEqual([true, true, false]);
  engine.eval();
  const judged = engine.forward<Tensor>(x);
  expect([isGone(next), isGone(judged)]).toEqual([true, false]);
  engine.forward<Tensor>(x);
  expect(isGone(judged)).toBe(true);
  x.dispose();
});

test('zeroGrad() of its optimizer ends with the engine', async () => {
  const engine = await engineOf();
  const { optimizer } = engine;
  const warn = jest.spyOn(process, 'emitWarning').mockImplementation(() => {});
  optimizer.zeroGrad();
  expect(warn).not.toHaveBeenCalled();
  for (const _ of [1, 2, 3]) {
    scope(() => engine.backward(engine.forward<Tensor>(input())));
    engine.step();
    optimizer.zeroGrad();
  }
  expect(warn.mock.calls).toEqual([
    [
      expect.stringContaining('drops the gradients of 1 of 2 micro-batches of a step'),
      { type: 'DsWarning', code: 'DS_AUTOGRAD' },
    ],
  ]);
  expect(engine.globalSteps).toBe(1);
  engine.destroy();
  open.length = 0;
  expect(Object.hasOwn(optimizer, 'zeroGrad')).toBe(false);
  for (const call of ['forward', 'backward', 'step', 'trace', 'watch', 'offloadStates'] as const) {
    expect(thrownBy(() => (engine[call] as (item: unknown) => unknown)(undefined)).code).toBe(
      'DS_AUTOGRAD',
    );
  }
});

test('its observers get the last step, and then end with the engine', async () => {
  const engine = await engineOf({ gradient_accumulation_steps: 1 });
  const log: string[] = [];
  engine.parts.watch.add({
    stepFinished: ({ step }) => void log.push(`step ${step}`),
    close: () => void log.push('close'),
  });
  micro(engine);
  expect(log).toEqual([]);
  engine.destroy();
  open.length = 0;
  expect(log).toEqual(['step 1', 'close']);
});

test('synchronize() reports the last step with its times; an evaluation is not timed', async () => {
  const engine = await engineOf({ gradient_accumulation_steps: 1 });
  const log: string[] = [];
  engine.parts.watch.add({
    stepFinished: ({ step }) => void log.push(`step ${step}`),
    stepTimed: ({ step }) => void log.push(`times ${step}`),
    flush: async () => void log.push('flush'),
  });
  engine.recordPhases();
  const timed = jest.spyOn(engine.parts.watch, 'time');
  const phases = (): unknown[] => timed.mock.calls.map(([phase]) => phase);
  micro(engine);
  expect(phases()).toEqual(['forward', 'backward', 'step']);
  expect(engine.eval()).toBe(engine);
  scope(() => engine.forward<Tensor>(input()));
  expect([engine.module.training, phases().length]).toEqual([false, 3]);
  expect(engine.train()).toBe(engine);
  expect([engine.module.training, log]).toEqual([true, []]);
  engine.synchronize();
  await engine.flushMonitors();
  expect(log).toEqual(['step 1', 'times 1', 'flush']);
});

test('a scaled loss is the loss of the step', async () => {
  const engine = await engineOf({ gradient_accumulation_steps: 1 });
  const loss = scope(() => {
    const loss = engine.forward<Tensor>(input());
    engine.scale(loss).backward();
    engine.step();
    return loss.item();
  });
  expect(engine.getGlobalLoss()).toBeCloseTo(loss, 5);
  scope(() => engine.forward<Tensor>(input()).backward());
  engine.step();
  expect(engine.getGlobalLoss()).toBeNull();
});

test('surplus arguments are refused', async () => {
  const engine = await engineOf();
  const loss = scope(() => engine.forward<Tensor>(input()).keep());
  const calls = [
    () => (engine.backward as (...all: unknown[]) => void)(loss, 1),
    () => (engine.step as (...all: unknown[]) => void)({}, 1),
  ];
  for (const [i, call] of calls.entries()) {
    expect(thrownBy(call)).toMatchObject({
      code: 'DS_ARGUMENT',
      op: ['engine.backward', 'engine.step'][i],
    });
  }
  loss.dispose();
});

test('a stop has its reason, and a signal that is aborted at the end of a step', async () => {
  const { engine } = await initialize({
    model: new Net(),
    device: cpu(),
    stopSignals: [],
    config: { train_batch_size: 2, optimizer: { type: 'SGD', params: {} } },
  });
  open.push(engine);
  const { stopSignal } = engine;
  expect([engine.stopRequested, stopSignal.aborted]).toEqual([false, false]);
  engine.requestStop();
  expect(stopSignal.aborted).toBe(false);
  micro(engine);
  expect([engine.stopRequested, stopSignal.aborted]).toEqual([true, true]);
  expect(stopSignal.reason).toEqual(new Error('Stop requested by engine.requestStop().'));
});

test('a trace of the next step is written to the named file', async () => {
  const folder = mkdtempSync(join(tmpdir(), 'ds-reported-engine-'));
  const engine = await engineOf({ gradient_accumulation_steps: 1 });
  const path = join(folder, 'trace.json');
  expect(engine.trace(path)).toBe(path);
  expect(thrownBy(() => engine.trace(path)).got).toMatch(/^a second trace before the steps of/);
  micro(engine);
  const { traceEvents } = JSON.parse(readFileSync(path, 'utf8')) as { traceEvents: object[] };
  expect(traceEvents.length).toBeGreaterThan(3);
  rmSync(folder, { recursive: true });
});

test('a metric of step() reaches the schedule after an update, and no other schedule', async () => {
  const plain = await engineOf();
  const refusalOf = (metrics: unknown) => thrownBy(() => plain.step({ metrics } as never));
  expect(refusalOf(1)).toMatchObject({ code: 'DS_ARGUMENT', op: 'engine.step' });
  expect(thrownBy(() => plain.step({ metric: 1 } as never)).code).toBe('DS_ARGUMENT');
  const scheduler = { type: 'ReduceLROnPlateau', params: { patience: 0, factor: 0.5 } } as never;
  const engine = await engineOf({ scheduler });
  const half = (metrics: number): void => {
    scope(() => engine.backward(engine.forward<Tensor>(input())));
    engine.step({ metrics });
  };
  const rates: number[] = [];
  for (const metric of [1, 2, 9, 3, 1]) {
    half(metric);
    rates.push(...engine.getLr());
  }
  // Steps 2 and 4 update, with the metrics 2 and 3: the second one is worse.
  expect(rates).toEqual([0.05, 0.05, 0.05, 0.025, 0.025]);
});

test('zeroGrad() between the last backward and step() is refused', async () => {
  const engine = await engineOf();
  const half = (): void => scope(() => engine.backward(engine.forward<Tensor>(input())));
  half();
  engine.zeroGrad();
  half();
  engine.step();
  expect(thrownBy(() => engine.zeroGrad()).code).toBe('DS_AUTOGRAD');
  half();
  for (const drop of [() => engine.zeroGrad(), () => engine.optimizer.zeroGrad()]) {
    expect(thrownBy(drop)).toMatchObject({ expected: 'step() first' });
  }
  engine.step();
  expect(engine.globalSteps).toBe(1);
  engine.zeroGrad();
});

const rowsOf = (text: string): Map<string, string> =>
  new Map(
    text
      .split('\n')
      .filter((line) => line.startsWith('  '))
      .map((line) => [line.slice(2, 24).trimEnd(), line.slice(24)]),
  );

test('dump_state lists model, optimizer, units and configuration, without secrets', async () => {
  const frozen = new Net();
  frozen.second.requiresGrad_(false);
  const engine = await engineOf({}, frozen);
  const config = {
    ...engine.config,
    comet: { api_key: 'abc', experiment_key: 'def', apikey: 'ghi', token: 5, tokenizer: 'gpt2' },
  };
  const text = describeState({ ...engine.parts, config } as never);
  const [head] = text.split('\n');
  expect(head).toBe('engine state at initialization');
  const rows = rowsOf(text);
  const rowsNamed = (...names: string[]) => names.map((name) => rows.get(name));
  expect(rowsNamed('model', 'parameters', 'weights', 'gradient sums', 'loss scale')).toEqual([
    'Net',
    '20, 16 trained',
    'f32',
    'f32',
    '1, static',
  ]);
  expect(rowsNamed('batch', 'optimizer', 'schedule', 'units')).toEqual([
    '4 = 2 x 2 accumulation steps x 1 rank',
    'AdamW',
    'none',
    '1',
  ]);
  expect(rows.get('device')).toMatch(/^cpu, ./);
  expect(rows.get('  group 0')).toMatch(/^2 parameters, \{.*"lr":0\.05/);
  expect(rows.get('state of 1 units')).toMatch(/, DeferredUpdates$/);
  expect(rows.get('master and state')).toBe('0.0 MiB on the device, 0.0 MiB on the host');
  expect(rows.get('  root')).toMatch(/^2 parameters, 128 elements, weights 0\.0 MiB$/);
  const printed = JSON.parse(text.slice(text.indexOf('\n{'))) as { comet: object };
  expect(printed.comet).toEqual({
    api_key: '***',
    experiment_key: '***',
    apikey: '***',
    token: 5,
    tokenizer: 'gpt2',
  });
  const ranks = { ...engine.parts.ranks, dataGroup: { size: 3 } };
  const state = { bytes: { device: 0, host: 2 ** 20, disk: 3 * 2 ** 20 }, updateGroups: [] };
  const other = rowsOf(
    describeState({ ...engine.parts, ranks, state, units: [], config } as never),
  );
  expect(other.get('batch')).toMatch(/ x 3 ranks$/);
  expect([other.get('weights'), other.get('gradient sums')]).toEqual(['none', 'none']);
  expect(other.get('master and state')).toBe(
    '0.0 MiB on the device, 1.0 MiB on the host, 3.0 MiB on disk',
  );
});
