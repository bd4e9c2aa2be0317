// Tests that memory_breakdown and dump_state print the state of the engine.
import assert from 'node:assert/strict';
import { describeState } from '../../lib/engine/watch/dump-state.js';
import { type MemoryUse, measureMemory } from '../../lib/engine/watch/memory-breakdown.js';
import { type DsConfig, type Engine, initialize, type Tensor } from '../../lib/index.js';
import type { Device } from '../../lib/runtime/device.js';
import { seed } from '../../lib/tensor/index.js';
import type { Case } from '../support/case.js';
import { captureOutput } from '../support/printed.js';
import { type TinyOptions, tinyBatch, tinyConfig, tinyModel, trainTiny } from './tiny-training.js';

async function engineOf(device: Device, options: TinyOptions, extra: DsConfig): Promise<Engine> {
  seed(1234);
  const config = { ...tinyConfig(options), ...extra };
  const { engine } = await initialize({ model: tinyModel(), config, device });
  return engine;
}

const MiB = 2 ** 20;

/** "name: 1.5 MiB" of one line, in MiB. */
function figure(line: string, name: string): number {
  const found = new RegExp(`${name}: (-?[\\d.]+) MiB`).exec(line);
  assert.ok(found, `no ${name} in ${line}`);
  return Number(found[1]);
}

const POINTS = ['forward', 'backward', 'step'].flatMap((p) => [`before ${p}`, `after ${p}`]);

/**
 * Bytes of every owner at every point, from the shapes: 16-bit weights and gradients, three f32
 * copies.
 */
async function memory(device: Device, offload: boolean): Promise<void> {
  let elements = 0;
  const before = device.memory.inUse / MiB;
  const options: TinyOptions = { precision: 'bf16', offload };
  const text = await captureOutput(async () => {
    const engine = await engineOf(device, options, { memory_breakdown: true });
    elements = engine.parts.units.reduce((sum, { layout }) => sum + layout.numel, 0);
    trainTiny(engine, 0, 2);
    engine.destroy();
  });
  const lines = text.split('\n').slice(0, -1);
  const points = lines.map((line) => /^memory (.*?) \|/.exec(line)?.[1]);
  assert.deepEqual(points, ['after initialization', ...POINTS, ...POINTS]);
  const close = (line: string, name: string, bytes: number): void =>
    assert.ok(Math.abs(figure(line, name) - bytes / MiB) <= 0.0501, `${name}, ${bytes}: ${line}`);
  lines.forEach((line, i) => {
    const held = ['after backward', 'before step'].includes(points[i] as string);
    close(line, 'weights', 2 * elements);
    close(line, 'gradients', held && !offload ? 2 * elements : 0);
    if (!offload) close(line, 'master and optimizer', 12 * elements);
    assert.ok(figure(line, 'host pinned') >= (offload ? (12 * elements) / MiB - 0.06 : 0), line);
    const sum = ['weights', 'gradients', 'master and optimizer', 'activations and other'];
    if (device.kind === 'cpu') {
      sum.push('host pinned');
      assert.ok(figure(line, 'activations and other') < before + 2, `${before} before: ${line}`);
    }
    const total = sum.reduce((all, name) => all + figure(line, name), 0);
    assert.ok(Math.abs(total - figure(line, device.name)) < 0.3, line);
    assert.ok(figure(line, 'host resident') > 1, line);
  });
}

/**
 * Activations are the remaining bytes, and are gone after backward. The peak is at least the
 * current value.
 */
async function activations(device: Device): Promise<void> {
  const engine = await engineOf(device, { precision: 'fp32', offload: false }, {});
  const { tokens, targets } = tinyBatch(0, device);
  const use = (): MemoryUse['device'] => measureMemory(engine.parts).device;
  const loss = engine.forward<Tensor>(tokens, targets);
  const after = use();
  engine.backward(loss);
  const later = use();
  assert.ok(
    after.other > later.other,
    `${after.other} after forward, ${later.other} after backward`,
  );
  assert.equal(after.gradients, 0);
  assert.equal(later.gradients, later.weights);
  assert.ok(later.peak >= later.inUse);
  engine.step();
  engine.destroy();
  for (const tensor of [tokens, targets]) tensor.dispose();
}

async function state(device: Device): Promise<void> {
  const options: TinyOptions = { precision: 'bf16', offload: false, accumulation: 2 };
  const text = await captureOutput(async () => {
    const engine = await engineOf(device, options, { dump_state: true });
    trainTiny(engine, 0, 1);
    engine.destroy();
  });
  assert.equal(text.match(/engine state at initialization/g)?.length, 1);
  assert.match(text, /model +GPT2\n/);
  assert.match(text, /batch +6 = 3 x 2 accumulation steps x 1 rank\n/);
  assert.match(text, /optimizer +AdamW\n.*group 0 .*"lr":0\.003/);
  assert.match(text, /schedule +WarmupLR\n/);
  assert.match(text, /units +3\n +root .*\n +transformer\.h\.0 /);
  const json = text.slice(text.indexOf('{', text.indexOf('configuration (resolved)')));
  const config = JSON.parse(json);
  assert.equal(config.train_batch_size, 6);
  assert.equal(config.dump_state, true);
  assert.equal(config.gradient_clipping, 1);
}

async function secrets(device: Device): Promise<void> {
  const engine = await engineOf(device, { precision: 'fp32', offload: false }, {});
  const { config } = engine.parts;
  const comet = { ...config.comet, api_key: 'not-for-a-log', project: 'for-a-log' };
  const text = describeState({ ...engine.parts, config: { ...config, comet } });
  assert.match(text, /"api_key": "\*\*\*"/);
  assert.match(text, /"project": "for-a-log"/);
  assert.ok(!text.includes('not-for-a-log'));
  engine.destroy();
}

async function neither(device: Device): Promise<void> {
  const options: TinyOptions = { precision: 'fp32', offload: false };
  const text = await captureOutput(async () => {
    const engine = await engineOf(device, options, {});
    trainTiny(engine, 0, 1);
    engine.destroy();
  });
  assert.equal(text, '');
}

/** Nested watchers: phases are timed from the time when timing is enabled. */
async function together(device: Device): Promise<void> {
  const extra = { memory_breakdown: true, flops_profiler: { enabled: true, detailed: false } };
  await captureOutput(async () => {
    const engine = await engineOf(device, { precision: 'fp32', offload: false }, extra);
    trainTiny(engine, 0, 1);
    assert.equal(engine.phaseTimes(), null);
    engine.recordPhases();
    trainTiny(engine, 1, 2);
    const times = engine.phaseTimes();
    assert.ok(times && times.forward > 0 && times.backward > 0 && times.step > 0);
    engine.destroy();
  });
}

export const cases: Case[] = [
  { name: 'memory_breakdown: bytes by owner', run: (device) => memory(device, false) },
  { name: 'memory_breakdown: bytes by owner, offloaded', run: (device) => memory(device, true) },
  { name: 'memory_breakdown: the remaining bytes are activations', run: activations },
  { name: 'dump_state prints the whole resolved configuration once', run: state },
  { name: 'dump_state prints no secrets', run: secrets },
  { name: 'nothing is printed when nothing is asked for', run: neither },
  { name: 'memory_breakdown and flops_profiler together', run: together },
];
