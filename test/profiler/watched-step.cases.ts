// The profiled step of an engine: the configuration's section, GPT-2 124M's FLOPs, and times that
// add up.
import assert from 'node:assert/strict';
import { existsSync, mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import {
  type DsConfig,
  type Engine,
  initialize,
  nn,
  type profiler,
  Tensor,
} from '../../lib/index.js';
import type { Device } from '../../lib/runtime/device.js';
import { seed } from '../../lib/tensor/index.js';
import {
  type TinyOptions,
  tinyConfig,
  tinyModel,
  tinyShape,
  trainTiny,
} from '../e2e/tiny-training.js';
import type { Case } from '../support/case.js';
import { captureOutput } from '../support/printed.js';
import { gpt2Macs, modelFlopsPerToken, relative } from './closed-form.js';

const tiny: TinyOptions = { precision: 'fp32', offload: false, accumulation: 2 };

async function inFolder(body: (folder: string) => Promise<void>): Promise<void> {
  const folder = mkdtempSync(join(tmpdir(), 'ds-profiler-'));
  try {
    await body(folder);
  } finally {
    rmSync(folder, { recursive: true });
  }
}

async function tinyEngine(device: Device, extra: DsConfig, options = tiny): Promise<Engine> {
  seed(1234);
  const config = { ...tinyConfig(options), ...extra };
  const { engine } = await initialize({ model: tinyModel(), config, device });
  return engine;
}

const read = (file: string): profiler.ModelProfile => JSON.parse(readFileSync(file, 'utf8'));

/** Step 3 of 4, both micro-batches; the weights equal an unprofiled run. */
async function oneStep(device: Device): Promise<void> {
  await inFolder(async (folder) => {
    const file = join(folder, 'deep', 'profile.json');
    const section = { enabled: true, profile_step: 3, output_file: file };
    const engine = await tinyEngine(device, { flops_profiler: section });
    trainTiny(engine, 0, 2);
    assert.ok(!existsSync(file), 'written before its step');
    trainTiny(engine, 2, 3);
    const profile = read(file);
    rmSync(file);
    const losses = trainTiny(engine, 3, 4);
    engine.destroy();
    assert.ok(!existsSync(file), 'written twice');
    const { batch, seq, vocabulary } = tinyShape;
    const shape = { channels: 36, layers: 2, vocabulary, batch: 2 * batch, seq };
    const { blocks, headWide } = gpt2Macs(shape);
    assert.equal(profile.work.forward.macs, blocks + headWide, 'two micro-batches');
    assert.deepEqual(
      [profile.engine?.step, profile.engine?.samples, profile.engine?.microBatches],
      [3, 2 * batch, 2],
    );
    assert.equal(profile.model.calls, 2);
    const plain = await tinyEngine(device, {});
    assert.deepEqual(trainTiny(plain, 0, 4).slice(-2), losses);
    plain.destroy();
  });
}

async function table(device: Device): Promise<void> {
  const section = { enabled: true, module_depth: 2, top_modules: 2 };
  const text = await captureOutput(async () => {
    const engine = await tinyEngine(device, { flops_profiler: section });
    trainTiny(engine, 0, 2);
    engine.destroy();
  });
  const lines = text.split('\n');
  assert.equal(lines.filter((line) => line.startsWith('global step:')).length, 1);
  assert.deepEqual(
    lines.filter((line) => /^depth \d/.test(line)),
    ['depth 0:', 'depth 1:', 'depth 2:'],
  );
  assert.match(text, /depth 2:\n {4}params {6}- GPT2Block: [\d.]+ K, Embedding: /);
  assert.match(text, /\(h\.1\): GPT2Block\([^\n]*MACs, [^\n]*latency, [^\n]*bwd /);
  assert.match(text, /\n {6}\(ln_2\): LayerNorm\([^\n]*, fused\)\n/);
}

async function quiet(device: Device): Promise<void> {
  const section = { enabled: true, detailed: false };
  const text = await captureOutput(async () => {
    const engine = await tinyEngine(device, { flops_profiler: section });
    trainTiny(engine, 0, 1);
    engine.destroy();
  });
  assert.ok(!text.includes('h.1'), text);
}

/** If the folder cannot be created, the engine warns, and training continues without a profile. */
async function unwritable(device: Device): Promise<void> {
  const warnings: string[] = [];
  const { emitWarning } = process;
  process.emitWarning = ((text: string) => void warnings.push(text)) as typeof emitWarning;
  try {
    const section = { enabled: true, output_file: '/dev/null/profile.txt' };
    const engine = await tinyEngine(device, { flops_profiler: section });
    trainTiny(engine, 0, 2);
    assert.equal(engine.globalSteps, 2);
    engine.destroy();
  } finally {
    process.emitWarning = emitWarning;
  }
  assert.equal(warnings.length, 1);
  assert.match(warnings[0] as string, /flops_profiler.*\/dev\/null\/profile\.txt/s);
}

/** An unfinished step leaves no state behind. */
async function checkUnfinished(device: Device): Promise<void> {
  const engine = await tinyEngine(device, { flops_profiler: { enabled: true } });
  const again = await tinyEngine(device, { flops_profiler: { enabled: true, detailed: false } });
  const tokens = Tensor.from(new Int32Array(4), { shape: [1, 4], device }).keep();
  engine.forward(tokens);
  engine.destroy();
  const text = await captureOutput(async () => void trainTiny(again, 0, 1));
  assert.match(text, /global step: +1\n/);
  again.destroy();
  tokens.dispose();
}

const large = { channels: 768, layers: 12, vocabulary: 50257 };

async function train124M(device: Device, config: DsConfig, steps: number): Promise<void> {
  const gpu = device.kind !== 'cpu';
  const [batch, seq] = gpu ? [8, 1024] : [1, 64];
  const model = new nn.models.GPT2(nn.models.GPT2.config('124M'));
  const { engine } = await initialize({
    model,
    device,
    config: {
      train_micro_batch_size_per_gpu: batch,
      optimizer: { type: 'AdamW', params: { lr: 1e-4 } },
      bf16: { enabled: gpu },
      ...config,
    },
  });
  const shape = [batch, seq];
  const ids = Int32Array.from({ length: batch * seq }, (_, i) => (i * 7919) % large.vocabulary);
  const tokens = Tensor.from(ids, { shape, device }).keep();
  for (let step = 0; step < steps; ++step) {
    engine.backward(engine.forward<Tensor>(tokens, tokens));
    engine.step();
  }
  engine.destroy();
  for (const tensor of [tokens, ...model.parameters()]) tensor.dispose();
}

/** FLOPs against 6 N + 6 L C T, within 1 %, and device times against their sums. */
async function gpt2Large(device: Device): Promise<void> {
  await inFolder(async (folder) => {
    const file = join(folder, 'profile.json');
    const steps = device.kind === 'cpu' ? 1 : 5;
    const section = { enabled: true, profile_step: steps, output_file: file };
    await train124M(device, { flops_profiler: section }, steps);
    const { work, parameters, engine, model } = read(file);
    assert.equal(parameters, 124_439_808);
    const { samples, latencyMs } = engine as profiler.StepFacts;
    const shape = { ...large, batch: samples, seq: device.kind === 'cpu' ? 64 : 1024 };
    const { blocks, headWide } = gpt2Macs(shape);
    assert.equal(work.forward.macs, blocks + headWide);
    assert.equal(work.backward.macs, 2 * blocks + 2 * headWide);
    const expected = samples * shape.seq * modelFlopsPerToken(parameters, shape);
    const counted = work.forward.flops + work.backward.flops;
    assert.ok(relative(counted, expected) < 0.01, `${counted}, expected ${expected}`);
    const { forward, backward, step, total } = latencyMs;
    // Gaps between the phases belong to none. On the CPU, other work of the host lengthens them.
    const phases = (forward + backward + step) / total;
    const least = device.kind === 'cpu' ? 0 : 0.75;
    assert.ok(phases > least && phases < 1.01, JSON.stringify(latencyMs));
    const inner = model.children.reduce((sum, child) => sum + child.latencyMs, 0);
    const fullValue = inner + model.ownLatencyMs;
    assert.ok(
      relative(fullValue, forward) < 0.05,
      `modules ${fullValue} ms, forward ${forward} ms`,
    );
    const blocksMs = model.children[0]?.children.reduce((sum, { latencyMs: ms }) => sum + ms, 0);
    assert.ok((blocksMs as number) <= (model.children[0]?.latencyMs as number) * 1.001);
  });
}

export const cases: Case[] = [
  { name: 'flops_profiler: one step, whole, and nothing else', run: oneStep },
  { name: 'flops_profiler: the table', run: table },
  { name: 'flops_profiler: detailed off', run: quiet },
  { name: 'flops_profiler: a file that cannot be written', run: unwritable },
  { name: 'flops_profiler: a step that never ended', run: checkUnfinished },
  { name: 'flops_profiler: GPT-2 124M by the closed formula, times that add up', run: gpt2Large },
];
