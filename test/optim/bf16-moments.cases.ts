// bf16.bf16_optimizer_states: homes and schedules change no bit, memory is 4 bytes a parameter
// less, and the loss stays.
import assert from 'node:assert/strict';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { type Engine, initialize } from '../../lib/index.js';
import type { Device } from '../../lib/runtime/device.js';
import { seed } from '../../lib/tensor/index.js';
import {
  type Precision,
  stateBits,
  type TinyOptions,
  tinyConfig,
  tinyEngine,
  tinyModel,
  trainTiny,
  weightBits,
} from '../e2e/tiny-training.js';
import type { Case } from '../support/case.js';

const STEPS = 20;

/** Where the state is and when it is updated: each with the bits of the first. */
const homes: Record<string, Partial<TinyOptions>> = {
  'on the device': {},
  'in host memory': { offload: true },
  'in host memory, small tiles': { offload: true, zero: { stage: 2, sub_group_size: 640 } },
  'tried out': { offload: true, speculative: true },
  'half of it in host memory': { offload: true, ratio: 0.5 },
  'half of it updated by the device': { offload: true, gpuShare: 0.5 },
  'that, tried out': { offload: true, gpuShare: 0.5, speculative: true },
  'at stage 3, with the weights': {
    offload: true,
    zero: { stage: 3, offload_param: { device: 'cpu' } },
  },
};

async function homesAreAlike(precision: Precision, device: Device): Promise<void> {
  device.setDeterministic(true);
  const dir = mkdtempSync(join(tmpdir(), 'ds-moments-'));
  try {
    const all: typeof homes = { ...homes, 'on a disk': { offload: true, nvme: dir } };
    let expected: Awaited<ReturnType<typeof run>> | null = null;
    for (const [name, home] of Object.entries(all)) {
      const options = { precision, offload: false, bf16States: true, clip: 0.5, ...home };
      const found = await run(options, device);
      if (!expected) {
        expected = found;
        const { losses, skipped } = found;
        assert.ok(losses.at(-1)! < losses[0]! - 0.3, `no learning: ${losses}`);
        if (precision === 'fp16') assert.ok(skipped > 0, 'no overflow was provoked');
      }
      assert.deepEqual(found, expected, name);
    }
  } finally {
    rmSync(dir, { recursive: true, force: true });
  }
}

async function run(options: TinyOptions, device: Device) {
  const engine = await tinyEngine(options, device);
  const losses = trainTiny(engine, 0, STEPS);
  const found = { losses, weights: weightBits(engine), skipped: engine.skippedSteps };
  engine.destroy();
  return found;
}

/** Bytes of state in both memories, by home. */
async function memory(device: Device): Promise<void> {
  const layouts: Partial<TinyOptions>[] = [
    {},
    { offload: true },
    { offload: true, speculative: true },
  ];
  for (const home of layouts) {
    const bytes: number[] = [];
    let parameters = 0;
    for (const bf16States of [false, true]) {
      const engine = await tinyEngine(
        { precision: 'bf16', offload: false, bf16States, ...home },
        device,
      );
      const { state, units } = engine.parts;
      bytes.push(state.bytes.device + state.bytes.host);
      parameters = units.reduce((sum, { layout }) => sum + layout.numel, 0);
      for (const name of stateBits(engine).keys()) assert.match(name, /master|exp_avg/);
      engine.destroy();
    }
    assert.equal(bytes[0]! - bytes[1]!, 4 * parameters, JSON.stringify(home));
  }
}

/**
 * Mean loss of the last 20 of 300 steps with dropout, at a beta2 under which rounding to nearest is
 * seen.
 */
async function learnsAlike(device: Device): Promise<void> {
  const ends: number[] = [];
  for (const bf16States of [false, true]) {
    seed(7);
    const params = { lr: 1e-3, betas: [0.9, 0.999], weight_decay: 0.1 } as const;
    const config = tinyConfig({
      precision: 'bf16',
      offload: false,
      bf16States,
      lr: 1e-3,
      optimizer: { type: 'AdamW', params: { ...params, betas: [0.9, 0.999] } },
    });
    const { engine } = await initialize({ model: tinyModel({ dropout: 0.1 }), config, device });
    const losses = trainTiny(engine, 0, 300);
    engine.destroy();
    ends.push(losses.slice(-20).reduce((sum, loss) => sum + loss, 0) / 20);
  }
  const [exact, rounded] = ends as [number, number];
  assert.ok(exact < 2, `no learning: ${exact}`);
  assert.ok(Math.abs(rounded - exact) < 0.005 * exact, `${rounded} where fp32 has ${exact}`);
}

/** A checkpoint of either kind goes on with the other, and is rounded or widened on the way. */
async function checkpointsCross(device: Device): Promise<void> {
  const dir = mkdtempSync(join(tmpdir(), 'ds-moments-'));
  const start = (bf16States: boolean, offload = false): Promise<Engine> =>
    tinyEngine({ precision: 'bf16', offload, bf16States }, device);
  try {
    const narrow = await start(true);
    trainTiny(narrow, 0, 4);
    await narrow.saveCheckpoint(join(dir, 'bf16'));
    const expected = moments(narrow);
    const wide = await start(false, true);
    await wide.loadCheckpoint(join(dir, 'bf16'));
    const widened = moments(wide);
    for (const [name, values] of expected) assert.deepEqual(widened.get(name), values, name);
    trainTiny(wide, 4, 6);
    await wide.saveCheckpoint(join(dir, 'fp32'));
    const exact = moments(wide);
    await narrow.loadCheckpoint(join(dir, 'fp32'));
    for (const [name, values] of moments(narrow)) {
      const all = exact.get(name) as Float32Array;
      values.forEach((value, i) => {
        const error = Math.abs(value - all[i]!);
        assert.ok(error <= 2 ** -8 * Math.abs(all[i]!), `${name}[${i}]: ${value} of ${all[i]}`);
      });
    }
    const losses = trainTiny(narrow, 6, 10);
    assert.ok(losses.every(Number.isFinite), `${losses}`);
    wide.destroy();
    narrow.destroy();
  } finally {
    rmSync(dir, { recursive: true, force: true });
  }
}

/** All moments by name, widened. */
function moments(engine: Engine): Map<string, Float32Array> {
  const found = new Map<string, Float32Array>();
  for (const [name, bits] of stateBits(engine)) {
    if (!name.includes('exp_avg')) continue;
    const { buffer, byteOffset, length } = Buffer.from(bits, 'base64');
    const bytes = buffer.slice(byteOffset, byteOffset + length);
    const isNarrow = engine.config.bf16.bf16_optimizer_states;
    const words = isNarrow
      ? Uint32Array.from(new Uint16Array(bytes), (value) => value << 16)
      : new Uint32Array(bytes);
    found.set(name, new Float32Array(words.buffer));
  }
  return found;
}

export const cases: Case[] = [
  ...(['bf16', 'fp16', 'fp32'] as const).map((precision) => ({
    name: `moments of bf16 have the same bits wherever they are: ${precision}`,
    run: (device: Device) => homesAreAlike(precision, device),
  })),
  { name: 'moments of bf16 take 4 bytes a parameter less', run: memory },
  { name: 'bf16 moments learn like fp32 moments', run: learnsAlike },
  { name: 'checkpoints cross between moments of bf16 and fp32', run: checkpointsCross },
];
