// Tests that a checkpoint of four ranks at stage 3 resumes at other stages and on other numbers of
// ranks.
import assert from 'node:assert/strict';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import type { Device } from '../../lib/runtime/device.js';
import { reportsOf, runRanks } from '../comm/ranks.js';
import type { Precision } from '../e2e/tiny-training.js';
import type { Case } from '../support/case.js';
import type { Leg, Report, ResumeJob } from './resume-process.js';
import { storedTensors } from './stored-tensors.js';

const SAVED = 4;
const END = 14;
/** For gradient sums in another order, over ten steps of Adam with a rate of 3e-3. */
const BOUND = 2e-4;

async function runOn(device: Device, ranks: number, legs: Leg[]): Promise<Report[][]> {
  const job: ResumeJob = { device: device.kind, legs };
  return reportsOf<Report[]>(await runRanks('../checkpoint/resume-process', ranks, { job }));
}

/** Largest difference between two sets of f32 weights. */
function distance(a: Report, b: Report): number {
  let worst = 0;
  for (const [name, text] of Object.entries(a.weights)) {
    const [one, other] = [text, b.weights[name] as string].map((base64) => {
      const raw = Buffer.from(base64, 'base64');
      return new Float32Array(raw.buffer, raw.byteOffset, raw.byteLength / 4);
    }) as [Float32Array, Float32Array];
    one.forEach((value, i) => {
      worst = Math.max(worst, Math.abs(value - (other[i] as number)));
    });
  }
  return worst;
}

/** A run without a stop; it saves a checkpoint asynchronously during the next steps. */
async function resumeAnywhere(device: Device, precision: Precision, offload: boolean) {
  const dir = mkdtempSync(join(tmpdir(), 'ds-resume-'));
  try {
    const common = { precision, offload, dir };
    const fullLeg: Leg = { ...common, stage: 3, from: 0, to: END, saveAt: SAVED };
    const [unbroken] = (await runOn(device, 4, [fullLeg])) as [Report[]];
    const [expected] = unbroken as [Report];
    const resumeLeg = (stage: Leg['stage']): Leg => ({ ...common, stage, from: SAVED, to: END });
    for (const ranks of [1, 2, 3, 4]) {
      const stages = ranks === 4 ? ([2, 3] as const) : ([0, 1, 2] as const);
      const legs = stages.map(resumeLeg);
      for (const [rank, reports] of (await runOn(device, ranks, legs)).entries()) {
        for (const [i, report] of reports.entries()) {
          const place = `${ranks} ranks, stage ${stages[i]}, rank ${rank}`;
          if (ranks === 4) assert.deepEqual(report.weights, expected.weights, place);
          else assert.ok(distance(report, expected) < BOUND, place);
        }
      }
    }
  } finally {
    rmSync(dir, { recursive: true, force: true });
  }
}

/** `elasticity` gives these numbers of ranks the same batch, with different accumulation. */
async function resumeElastically(device: Device) {
  const dir = mkdtempSync(join(tmpdir(), 'ds-resume-'));
  try {
    const common = { precision: 'fp32' as const, offload: false, dir, stage: 1 as const };
    const fullLeg: Leg = { ...common, elastic: true, from: 0, to: 8, saveAt: 2 };
    const [[expected]] = (await runOn(device, 2, [fullLeg])) as [[Report]];
    const [[plain]] = (await runOn(device, 2, [{ ...fullLeg, elastic: false }])) as [[Report]];
    assert.deepEqual(expected, plain);
    for (const ranks of [1, 3]) {
      const [[report]] = (await runOn(device, ranks, [{ ...fullLeg, from: 2 }])) as [[Report]];
      assert.ok(distance(report, expected) < BOUND, `${ranks} ranks`);
    }
  } finally {
    rmSync(dir, { recursive: true, force: true });
  }
}

/** Bit for bit on the same number of ranks, in any precision. */
async function resumeAlike(
  device: Device,
  precision: Precision,
  { offload, bf16States = false }: { offload: boolean; bf16States?: boolean },
) {
  const dir = mkdtempSync(join(tmpdir(), 'ds-resume-'));
  try {
    const stages = [0, 1, 2, 3] as const;
    const legs = stages.flatMap((stage): Leg[] => {
      const nvme = stage === 2 ? dir : undefined;
      const where = {
        stage,
        precision,
        nvme,
        bf16States,
        offload: offload && stage > 0,
        dir: join(dir, `${stage}`),
      };
      return [
        { ...where, from: 0, to: 6, saveAt: 3 },
        { ...where, from: 3, to: 6 },
      ];
    });
    for (const reports of await runOn(device, 2, legs)) {
      for (const stage of stages) {
        const [unbroken, resumed] = reports.slice(2 * stage) as [Report, Report];
        assert.deepEqual(resumed.weights, unbroken.weights, `stage ${stage}`);
        assert.deepEqual(resumed.losses, unbroken.losses.slice(3), `stage ${stage}`);
      }
    }
  } finally {
    rmSync(dir, { recursive: true, force: true });
  }
}

/**
 * State per parameter and per block. 3 ranks save it at stage 3. Then 1 and 2 ranks load it at
 * other stages and offloaded, and save it again: it is equal bit for bit. On the same number of
 * ranks, training continues with the bits of stage 3.
 */
async function movesDeclared(device: Device, optimizer: Leg['optimizer']) {
  const dir = mkdtempSync(join(tmpdir(), 'ds-resume-'));
  try {
    const common = { precision: 'bf16' as const, offload: false, dir, optimizer, to: 4 };
    const fullLeg: Leg = { ...common, stage: 3, from: 0, saveAt: 2 };
    const [[expected]] = (await runOn(device, 3, [fullLeg])) as [[Report]];
    // Stages 0 and 1 sum micro-batches before ranks, so their gradient sums differ.
    const homes = [{}, { offload: true }, { offload: true, nvme: dir }];
    const alike = homes.map((home): Leg => ({ ...common, stage: 2, from: 2, ...home }));
    const [reports] = (await runOn(device, 3, alike)) as [Report[]];
    for (const { weights } of reports) assert.deepEqual(weights, expected.weights);
    const saved = storedTensors(join(dir, 'global_step2'));
    for (const [ranks, stage, home] of [
      [1, 1, { offload: true, nvme: dir }],
      [2, 0, {}],
      [2, 3, { offload: true, nvme: dir }],
    ] as const) {
      const copyTo = join(dir, `${ranks}-${stage}`);
      const leg: Leg = { ...common, stage, from: 2, to: 2, copyTo, ...home };
      await runOn(device, ranks, [leg]);
      assert.deepEqual(storedTensors(join(copyTo, 't')), saved, `${ranks} ranks, stage ${stage}`);
    }
    const names = Object.keys(saved).filter((name) => /absmax|_row|_col/.test(name));
    assert.ok(names.length > 10, `${names}`);
    assert.ok(!Object.keys(saved).some((name) => name.endsWith('_factor')));
  } finally {
    rmSync(dir, { recursive: true, force: true });
  }
}

/**
 * LAMB, Muon and Adafactor update whole parameters. 3 ranks save at stage 3, and other partitions
 * resume. Stage 2 on 3 ranks has the bits of stage 3; elsewhere, gradient sums differ by rounding.
 */
async function resumeWhole(device: Device, type: 'Lamb' | 'Muon' | 'Adafactor') {
  const dir = mkdtempSync(join(tmpdir(), 'ds-resume-'));
  try {
    const params = { lr: 3e-3, weight_decay: 0.1 };
    const optimizer =
      type === 'Adafactor' ? { type, params } : { type, params: { ...params, eps: 1e-8 } };
    const common = { precision: 'fp32' as const, offload: false, dir, optimizer, to: 6 };
    const fullLeg: Leg = { ...common, stage: 3, from: 0, saveAt: 2 };
    const [[expected]] = (await runOn(device, 3, [fullLeg])) as [[Report]];
    const resumeLeg = (stage: Leg['stage'], home: Partial<Leg> = {}): Leg => ({
      ...common,
      stage,
      from: 2,
      ...home,
    });
    const homes = [{}, { offload: true }, { offload: true, nvme: dir }];
    const legs = homes.map((home) => resumeLeg(2, home));
    const [alike] = (await runOn(device, 3, legs)) as [Report[]];
    if (device.kind === 'cpu') {
      for (const { weights } of alike) assert.deepEqual(weights, expected.weights);
    }
    for (const [ranks, stages] of [
      [1, [0]],
      [2, [0, 1, 3]],
    ] as const) {
      const [reports] = (await runOn(
        device,
        ranks,
        stages.map((stage) => resumeLeg(stage)),
      )) as [Report[]];
      for (const [i, report] of reports.entries()) {
        const apart = distance(report, expected);
        assert.ok(apart < BOUND, `${ranks} ranks, stage ${stages[i]}: ${apart}`);
      }
    }
  } finally {
    rmSync(dir, { recursive: true, force: true });
  }
}

export const cases: Case[] = [
  {
    name: 'saved by 4 ranks at stage 3, resumed by 1 to 4 at stages 0 to 3: the same 10 steps',
    run: (device) => resumeAnywhere(device, 'fp32', false),
    gpus: 4,
  },
  {
    name: 'elasticity: saved by 2 ranks, resumed by 1 and 3, the same steps',
    run: resumeElastically,
    gpus: 3,
  },
  {
    name: 'resume on 2 ranks equals never having stopped: bf16, offload, stages 0 to 3, of 2 on disk',
    run: (device) => resumeAlike(device, 'bf16', { offload: true }),
    gpus: 2,
  },
  {
    name: 'resume on 2 ranks equals never having stopped: moments in bf16',
    run: (device) => resumeAlike(device, 'bf16', { offload: true, bf16States: true }),
    gpus: 2,
  },
  ...(
    [
      { type: 'Adafactor', params: { lr: 3e-3, beta1: 0.9 } },
      { type: 'AdamW8bit', params: { lr: 3e-3, min_8bit_size: 100 } },
    ] as const
  ).map((optimizer) => ({
    name: `${optimizer.type}, saved by 3 ranks at stage 3, has the same bits on 1 to 3 at stages 0 to 3`,
    run: (device: Device) => movesDeclared(device, optimizer),
    skip: (device: Device) =>
      device.kind === 'cpu'
        ? null
        : 'NCCL picks the order of three: no stage has the bits of another',
  })),
  ...(['Lamb', 'Muon', 'Adafactor'] as const).map((type) => ({
    name: `${type}, saved by 3 ranks at stage 3, resumed by 1 to 3 at stages 0 to 3`,
    run: (device: Device) => resumeWhole(device, type),
    gpus: 3,
  })),
];
