// Training with the section "fp8": every recipe learns as bf16 does; offload, checkpointing,
// resume, stages and ranks change no bit.
import assert from 'node:assert/strict';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { Device } from '../../lib/runtime/device.js';
import { FP8_RECIPES, type Fp8Recipe } from '../../lib/tensor/ops/fp8-linear.js';
import { reportsOf, runRanks } from '../comm/ranks.js';
import type { Case } from '../support/case.js';
import type { Fp8Job, Fp8Report } from './fp8-process.js';
import { trainInProcess } from './resume.cases.js';
import { type TinyOptions, tinyEngine, trainTiny, weightBits } from './tiny-training.js';

/** Dims of linear layers are multiples of 16. */
export const fp8Model = { channels: 64, heads: 4 } as const;

const tiny = (recipe: Fp8Recipe | undefined, more: Partial<TinyOptions> = {}): TinyOptions => ({
  precision: 'bf16',
  offload: false,
  ...(recipe && { fp8: recipe }),
  ...more,
  model: { ...fp8Model, ...more.model },
});

async function train(
  options: TinyOptions,
  device: Device,
  steps: number,
): Promise<{ losses: number[]; weights: Map<string, string> }> {
  device.setDeterministic(true);
  const engine = await tinyEngine(options, device);
  const losses = trainTiny(engine, 0, steps);
  const weights = weightBits(engine);
  engine.destroy();
  return { losses, weights };
}

async function learns(recipe: Fp8Recipe, device: Device): Promise<void> {
  const steps = 40;
  const fp8 = await train(tiny(recipe), device, steps);
  const bf16 = await train(tiny(undefined), device, steps);
  assert.notDeepEqual(fp8.losses, bf16.losses);
  const mean = (losses: number[]): number => losses.slice(-8).reduce((a, b) => a + b, 0) / 8;
  const [got, expected] = [mean(fp8.losses), mean(bf16.losses)];
  assert.ok(got < (fp8.losses[0] as number) * 0.8, `no learning: ${fp8.losses}`);
  assert.ok(Math.abs(got - expected) < 0.05 * expected, `${got}, and ${expected} in bf16`);
}

async function equals(
  recipe: Fp8Recipe,
  more: Partial<TinyOptions>,
  device: Device,
): Promise<void> {
  const plain = await train(tiny(recipe), device, 12);
  const other = await train(tiny(recipe, more), device, 12);
  assert.deepEqual(other, plain);
}

function resumes(device: Device): void {
  const dirs = [0, 1].map(() => mkdtempSync(join(tmpdir(), 'ds-fp8-')));
  try {
    const job = { device: device.name, options: tiny('rowwise', { dropout: 0.1 }) };
    const fullTrainReport = trainInProcess({ ...job, dir: dirs[0] as string, from: 0, to: 10 });
    const first = trainInProcess({ ...job, dir: dirs[1] as string, from: 0, to: 5 });
    const second = trainInProcess({ ...job, dir: dirs[1] as string, from: 5, to: 10 });
    assert.deepEqual([...first.losses, ...second.losses], fullTrainReport.losses);
    assert.deepEqual(second.weights, fullTrainReport.weights);
  } finally {
    for (const dir of dirs) rmSync(dir, { recursive: true, force: true });
  }
}

async function onRanks(job: Omit<Fp8Job, 'device'>, { kind }: Device): Promise<Fp8Report> {
  const all = { device: kind, ...job };
  const reports = reportsOf<Fp8Report>(await runRanks('../e2e/fp8-process', 2, { job: all }));
  return reports[0] as Fp8Report;
}

/** Losses of stages 1 to 3 equal those of stage 0; gathers of codes change no product. */
async function stagesAgree(recipe: Fp8Recipe, device: Device): Promise<void> {
  const allGather = recipe === 'tensorwise';
  const { losses } = await onRanks({ recipe, stages: [0, 1, 2, 3], allGather }, device);
  const [first, ...others] = losses;
  for (const [i, one] of others.entries()) assert.deepEqual(one, first, `stage ${i + 1}`);
}

/** Layers that are split over ranks train as whole ones do, but for the scales of their parts. */
async function splitLayersAgree(recipe: Fp8Recipe, device: Device): Promise<void> {
  const { losses } = await onRanks({ recipe, stages: [0], tensorParallel: 2 }, device);
  const fullResult = await train(tiny(recipe), device, 8);
  for (const [i, loss] of (losses[0] as number[]).entries()) {
    const expected = fullResult.losses[i] as number;
    assert.ok(Math.abs(loss - expected) < 0.02 * expected, `step ${i}: ${loss}, not ${expected}`);
  }
}

const checkpointed = { checkpointing: true };
const unfused = { model: { fusedGelu: false } };

export const cases: Case[] = FP8_RECIPES.flatMap((recipe): Case[] => [
  { name: `fp8 ${recipe}: learns as bf16 does`, run: (device) => learns(recipe, device) },
  {
    name: `fp8 ${recipe}: offload changes no bit`,
    run: (device) => equals(recipe, { offload: true }, device),
  },
  {
    name: `fp8 ${recipe}: speculative offload changes no bit`,
    run: (device) =>
      equals(recipe, { offload: true, speculative: true, zero: { stage: 2 } }, device),
  },
  {
    name: `fp8 ${recipe}: activation checkpointing changes no bit`,
    run: (device) => equals(recipe, checkpointed, device),
  },
  {
    name: `fp8 ${recipe}: stages of two ranks agree`,
    run: (device) => stagesAgree(recipe, device),
    gpus: 2,
  },
  {
    name: `fp8 ${recipe}: tensor parallelism`,
    run: (device) => splitLayersAgree(recipe, device),
    gpus: 2,
  },
]).concat([
  {
    name: 'fp8: a layer with GELU equals the layer and GELU',
    run: (device) => equals('tensorwise', unfused, device),
  },
  { name: 'fp8: resume in a new process equals one run', run: resumes },
]);
