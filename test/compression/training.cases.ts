// Compressed models in training: ZeRO stages, checkpoints, ranks and devices agree.
import assert from 'node:assert/strict';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { quantizeValues } from '../../lib/compression/quantizers.js';
import { initCompression, initialize, noGrad, redundancyClean, Tensor } from '../../lib/index.js';
import { cpu, type Device } from '../../lib/runtime/device.js';
import { scope, seed } from '../../lib/tensor/index.js';
import { assertClose } from '../autograd/check.js';
import { reportsOf, runRanks } from '../comm/ranks.js';
import type { Case } from '../support/case.js';
import {
  compressModel,
  configOf,
  everything,
  type Section,
  small,
  train,
  valuesOf,
} from './models.js';
import type { RanksJob, RanksReport } from './ranks-process.js';

const STAGES = [0, 1, 2, 3] as const;
const zero = (stage: (typeof STAGES)[number]) => ({ zero_optimization: { stage } });

const of = (technique: string, shared: object, params: object, more: object = {}): Section => ({
  [technique]: {
    shared_parameters: { enabled: true, schedule_offset: 1, ...shared },
    different_groups: { all: { params, ...more } },
  },
});

const bits = (start_bits: number, target_bits: number) => ({ start_bits, target_bits });
const inBlocks = { modules: ['blocks'] };

const sections: Record<string, Section> = {
  'symmetric weights, drawn': of('weight_quantization', { rounding: 'stochastic' }, bits(6, 4)),
  'asymmetric weights': of('weight_quantization', { quantization_type: 'asymmetric' }, bits(8, 4)),
  'weights of three values': of('weight_quantization', {}, bits(2, 2)),
  'weights of two values': of('weight_quantization', {}, bits(1, 1)),
  'inputs of 8 bits': of('activation_quantization', {}, { bits: 8 }, inBlocks),
  'pruning by magnitude': of('sparse_pruning', { method: 'l1' }, { dense_ratio: 0.4 }, inBlocks),
  'pruning by scores': of('sparse_pruning', { method: 'topk' }, { dense_ratio: 0.4 }, inBlocks),
  'rows by scores': of(
    'row_pruning',
    { method: 'topk' },
    { dense_ratio: 0.4 },
    { modules: ['blocks.0'] },
  ),
  'everything at once': everything,
};

interface Run {
  losses: number[];
  values: Record<string, number[]>;
}

async function trainCompressed(section: Section, device: Device, more: object): Promise<Run> {
  const engine = await compressModel(section, more, device);
  try {
    return { losses: train(engine, 8), values: valuesOf(engine) };
  } finally {
    engine.destroy();
  }
}

/** One rounding that falls to the other side on one device moves a weight by Adam's step. */
function assertAlike(got: Run, expected: Run): void {
  assertClose(got.losses, expected.losses, 1e-3, 'losses');
  const names = Object.keys(expected.values);
  assert.deepEqual(Object.keys(got.values), names);
  const all = (run: Run) => names.flatMap((name) => run.values[name] as number[]);
  const [some, others] = [all(got), all(expected)];
  const off = some.map((value, i) => Math.abs(value - (others[i] as number)));
  const mean = off.reduce((sum, value) => sum + value, 0) / off.length;
  assert.ok(mean < 1e-4, `parameters and buffers differ by ${mean} in the mean`);
}

async function lossesUncompressed(device: Device): Promise<number[]> {
  const config = configOf(undefined);
  const { engine } = await initialize({ model: small(), config, device });
  const losses = train(engine, 8);
  engine.destroy();
  return losses;
}

async function trainsAlike(section: Section, device: Device): Promise<void> {
  const first = await trainCompressed(section, device, zero(0));
  assert.notDeepEqual(first.losses, await lossesUncompressed(device));
  for (const stage of [1, 2, 3] as const)
    assert.deepEqual(await trainCompressed(section, device, zero(stage)), first, `stage ${stage}`);
  const offload_optimizer = { device: 'cpu' };
  const offloaded = { zero_optimization: { stage: 2, offload_optimizer } };
  assert.deepEqual(await trainCompressed(section, device, offloaded), first, 'offloaded');
  if (device.kind !== 'cpu') assertAlike(first, await trainCompressed(section, cpu(), zero(0)));
}

/** A checkpoint of each stage, loaded at another one. */
async function resumes(device: Device): Promise<void> {
  const dir = mkdtempSync(join(tmpdir(), 'ds-compression-'));
  try {
    for (const stage of STAGES) {
      const engine = await compressModel(everything, zero(stage), device);
      train(engine, 4);
      await engine.saveCheckpoint(dir, { tag: `${stage}` });
      const rest = { losses: train(engine, 4), values: valuesOf(engine) };
      engine.destroy();
      seed(99);
      const config = configOf(everything, zero(STAGES[3 - stage] as 0));
      const model = initCompression(small(8), config);
      const { engine: other } = await initialize({ model, config, device });
      await other.loadCheckpoint(dir, { tag: `${stage}` });
      assert.deepEqual({ losses: train(other, 4), values: valuesOf(other) }, rest);
      other.destroy();
    }
  } finally {
    rmSync(dir, { recursive: true, force: true });
  }
}

async function ranksTrainAsOne(device: Device): Promise<void> {
  const job: RanksJob = { device: device.kind };
  const program = '../compression/ranks-process';
  const [first, second] = reportsOf<RanksReport>(await runRanks(program, 2, { job })) as [
    RanksReport,
    RanksReport,
  ];
  assert.deepEqual(second.values, first.values);
  for (const stage of STAGES) {
    assert.deepEqual(first.losses[stage], first.losses[0], `losses of stage ${stage}`);
    assert.deepEqual(first.values[stage], first.values[0], `values of stage ${stage}`);
  }
  const engine = await compressModel(everything, {}, device);
  assertClose(first.losses[0] as number[], train(engine, 6), 1e-5, 'one rank');
  engine.destroy();
}

function roundsAlike(device: Device): void {
  scope(() => {
    const values = Array.from({ length: 3 * 1031 }, (_, i) => Math.sin(i * 12.9898) * 43.7);
    for (const type of ['symmetric', 'asymmetric'] as const) {
      for (const count of type === 'symmetric' ? [8, 3, 2, 1] : [8, 4]) {
        const rounding = { bits: count, type, groups: 3, noise: null };
        const at = (where: Device): number[] =>
          Array.from(quantizeValues(Tensor.from(values, { device: where }), rounding).toArray());
        assertClose(at(device), at(cpu()), 1e-5, `${type}, ${count} bits`);
      }
    }
  });
}

async function cleans(device: Device): Promise<void> {
  const { weight_quantization: _, ...section } = everything;
  const engine = await compressModel(section, {}, device);
  train(engine, 5);
  const model = engine.module;
  engine.destroy();
  scope(() => {
    const index = Tensor.from(Int32Array.from([1, 4, 6]), { device });
    const outputs = () => noGrad(() => (model.call(index) as Tensor).toArray());
    const before = outputs();
    redundancyClean(model, configOf(section));
    assertClose(outputs(), before, 1e-6, 'outputs');
  });
  for (const parameter of model.parameters()) parameter.dispose();
}

export const cases: Case[] = [
  ...Object.entries(sections).map(([name, section]) => ({
    name: `compression, ${name}: stages and offload train alike`,
    run: (device: Device) => trainsAlike(section, device),
  })),
  { name: 'compression, everything at once: resumed at any stage', run: resumes },
  { name: 'compression: 2 ranks train as one, at every stage', run: ranksTrainAsOne, gpus: 2 },
  { name: 'compression: every device rounds values equally', run: roundsAlike },
  { name: 'compression: what was trained computes the same when it is clean', run: cleans },
];
