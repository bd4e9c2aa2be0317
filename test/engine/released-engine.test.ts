// A destroyed engine leaves memory, although the caller keeps the model and trains it again.
import { mkdtempSync, readdirSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setImmediate } from 'node:timers/promises';
import { compressionOf } from '../../lib/compression/compress.js';
import {
  type DsConfig,
  DsError,
  type Engine,
  initCompression,
  initialize,
  liveTensors,
} from '../../lib/index.js';
import type { CausalLM } from '../../lib/models/index.js';
import { isStreamed } from '../../lib/nn/streamed.js';
import { addon } from '../../lib/runtime/addon.js';
import { cpu } from '../../lib/runtime/device.js';
import { withOwners } from '../../lib/runtime/shortage.js';
import { TensorGrowth } from '../../lib/tensor/growth.js';
import type { OptimizerState } from '../../lib/zero/optimizer-state.js';
import { tinyConfig, tinyModel, trainTiny } from '../e2e/tiny-training.js';
import { collectGarbage, quiet } from '../support/quiet.js';

const folder = mkdtempSync(join(tmpdir(), 'ds-released-engine-'));
afterAll(() => rmSync(folder, { recursive: true }));

/** Whether the engine is collected within so many turns of the event loop. */
async function isCollected(engine: WeakRef<object>, turns = 200): Promise<boolean> {
  for (let turn = 0; turn < turns; ++turn) {
    // deref() keeps its target until the job ends: look in another one.
    await setImmediate();
    collectGarbage();
    await setImmediate();
    if (engine.deref() === undefined) return true;
  }
  return false;
}

async function train(model: CausalLM, stage: 0 | 1 | 3): Promise<Engine> {
  const options = { precision: 'bf16', offload: false, zero: { stage } } as const;
  const { engine } = await initialize({ model, config: tinyConfig(options), device: cpu() });
  trainTiny(engine, 0, 1);
  return engine;
}

/** Trains and destroys an engine, and holds nothing of it. */
async function releaseEngine(model: CausalLM, stage: 0 | 1 | 3): Promise<WeakRef<Engine>> {
  const engine = await train(model, stage);
  engine.destroy();
  return new WeakRef(engine);
}

/** Parameters that are trained, frozen and sharded (stage 3), or frozen and whole. */
const models: [string, 0 | 1 | 3, boolean][] = [
  ['all parameters are trained', 0, false],
  ['all parameters are trained and shared out', 3, false],
  ['some parameters are frozen, and whole', 1, true],
  ['some parameters are frozen, and shared out', 3, true],
];

test.each(models)('%s: stage %d', async (_, stage, isFrozen) => {
  const model = tinyModel();
  const parameters = [...model.parameters()];
  if (isFrozen) for (const parameter of parameters.slice(0, 3)) parameter.requireGrad(false);
  expect(await isCollected(await releaseEngine(model, stage))).toBe(true);
  // It is the caller's again.
  const next = await train(model, stage);
  next.destroy();
  expect(parameters.every(({ requiresGrad }, i) => requiresGrad !== (isFrozen && i < 3))).toBe(
    true,
  );
});

test('an engine that is not destroyed lives as long as its model', async () => {
  const model = tinyModel();
  const held = await (async () => new WeakRef(await train(model, 1)))();
  expect(await isCollected(held, 10)).toBe(false);
  held.deref()?.destroy();
  expect(model.vocabSize).toBe(131);
});

type Counted = 'createStream' | 'releaseStream' | 'createEvent' | 'releaseEvent';

/** What a process holds besides memory. */
const heldNow = () => ({
  files: readdirSync('/proc/self/fd').length,
  listeners: process.eventNames().map((name) => `${String(name)} ${process.listenerCount(name)}`),
  resources: process
    .getActiveResourcesInfo()
    .filter((name) => name !== 'Immediate')
    .sort(),
});

/** Sections of features that own streams, events, files, timers or listeners. */
const features: [string, DsConfig][] = [
  ['phase times', { wall_clock_breakdown: true }],
  [
    'a profile',
    { flops_profiler: { enabled: true, profile_step: 1, output_file: join(folder, 'profile') } },
  ],
  ['memory by owner', { memory_breakdown: true }],
  ['CSV files', { csv_monitor: { enabled: true, output_path: folder, job_name: 'run' } }],
  ['TensorBoard', { tensorboard: { enabled: true, output_path: folder, job_name: 'board' } }],
  ['a dynamic loss scale', { bf16: { enabled: false }, fp16: { enabled: true } }],
  ['progressive layer drop', { progressive_layer_drop: { enabled: true, theta: 0.5, gamma: 0.1 } }],
  ['FP8', { fp8: { enabled: true } }],
];

describe('destroy() leaves no stream, event, file, timer or listener', () => {
  test.each(features)('of %s', async (_, section) => {
    const print = jest.spyOn(process.stdout, 'write').mockReturnValue(true);
    const names: Counted[] = ['createStream', 'releaseStream', 'createEvent', 'releaseEvent'];
    const calls = names.map((name) => jest.spyOn(addon, name));
    const before = heldNow();
    const base = tinyConfig({ precision: 'bf16', offload: false });
    const model = tinyModel({ checkpointing: true, model: { channels: 32 } });
    const config = { ...base, ...section } as DsConfig;
    for (const parameter of model.parameters()) parameter.moveTo(cpu(), 'f32');
    await quiet();
    const live = liveTensors();
    const { engine } = await initialize({ model, config, device: cpu() });
    trainTiny(engine, 0, 3);
    expect(engine.stopRequested).toBe(false);
    engine.offloadStates();
    engine.reloadStates();
    engine.destroy();
    const [streams, freedStreams, events, freedEvents] = calls.map(({ mock }) => mock.calls.length);
    for (const call of [print, ...calls]) call.mockRestore();
    expect([freedStreams, freedEvents]).toEqual([streams, events]);
    expect(heldNow()).toEqual(before);
    expect(liveTensors()).toBe(live);
  });
});

describe('after destroy()', () => {
  test('a shortage of memory is not explained by the engine', async () => {
    const fields = { op: 'a tensor', expected: '9 bytes of host memory', got: '1' };
    const shortage = new DsError({ code: 'DS_OUT_OF_MEMORY', ...fields });
    const engine = await train(tinyModel(), 1);
    expect(withOwners(shortage)).not.toBe(shortage);
    engine.destroy();
    expect(withOwners(shortage)).toBe(shortage);
  });

  test('compressed layers keep the step of the end', async () => {
    const section = {
      weight_quantization: {
        shared_parameters: { enabled: true },
        different_groups: { all: { params: { start_bits: 8, target_bits: 8 }, modules: ['*'] } },
      },
    };
    const config = {
      ...tinyConfig({ precision: 'bf16', offload: false }),
      compression_training: section,
    };
    const model = initCompression(tinyModel(), config);
    const { engine } = await initialize({ model, config, device: cpu() });
    trainTiny(engine, 0, 2);
    const { progress } = engine as unknown as { progress: { globalSteps: number } };
    const clock = compressionOf(model)?.clock;
    engine.destroy();
    progress.globalSteps = 9;
    expect(clock?.step).toBe(2);
  });

  test('updates have ended, and no search for leaks samples tensors', async () => {
    const engine = await train(tinyModel(), 1);
    const { state } = (engine as unknown as { parts: { state: OptimizerState } }).parts;
    const synchronize = jest.spyOn(state, 'synchronize');
    const endSearch = jest.spyOn(TensorGrowth.prototype, 'dispose');
    engine.destroy();
    expect([synchronize, endSearch].map(({ mock }) => mock.calls.length)).toEqual([1, 1]);
    endSearch.mockRestore();
  });

  test('the weights of an engine without an optimizer may change again', async () => {
    const {
      optimizer: _,
      scheduler: __,
      ...config
    } = tinyConfig({
      precision: 'bf16',
      offload: false,
      zero: { stage: 3 },
    });
    const model = tinyModel();
    const { engine } = await initialize({ model, config, device: cpu() });
    expect(isStreamed(model)).toBe(true);
    engine.destroy();
    expect(isStreamed(model)).toBe(false);
  });
});

test('an engine that cannot be built leaves parameters outside of its groups trainable', async () => {
  const model = tinyModel();
  const [first, ...others] = model.parameters();
  const config = tinyConfig({ precision: 'bf16', offload: false });
  const modelParameters = [{ params: others }];
  const stopSignals = ['none of them'] as never;
  const built = initialize({ model, modelParameters, config, stopSignals, device: cpu() });
  await expect(built).rejects.toMatchObject({ code: 'DS_ARGUMENT' });
  expect(first?.requiresGrad).toBe(true);
});
