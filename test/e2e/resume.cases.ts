// Tests resume: 10 steps, a save, and 10 steps in a new process equal 20 steps, bit for bit.
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { Device } from '../../lib/runtime/device.js';
import { packageRoot } from '../../lib/runtime/package-root.js';
import type { Case } from '../support/case.js';
import type { TinyOptions } from './tiny-training.js';
import type { TrainJob, TrainReport } from './train-process.js';

/** Runs one training process to its end (built by `npm run build:test`). */
export function trainInProcess(job: TrainJob): TrainReport {
  const script = join(packageRoot(), 'build', 'js', 'test', 'e2e', 'train-process.js');
  const out = execFileSync(process.execPath, [script, JSON.stringify(job)], {
    encoding: 'utf8',
    maxBuffer: 1 << 28,
    timeout: 300_000,
  });
  return JSON.parse(out) as TrainReport;
}

function resumeEqualsOneRun(device: Device, options: TinyOptions): void {
  const dirs = [0, 1].map(() => mkdtempSync(join(tmpdir(), 'ds-resume-')));
  try {
    const job = { device: device.name, options };
    const fullTrainReport = trainInProcess({ ...job, dir: dirs[0] as string, from: 0, to: 20 });
    const first = trainInProcess({ ...job, dir: dirs[1] as string, from: 0, to: 10 });
    const second = trainInProcess({ ...job, dir: dirs[1] as string, from: 10, to: 20 });
    assert.deepEqual([...first.losses, ...second.losses], fullTrainReport.losses);
    assert.deepEqual(second.weights, fullTrainReport.weights);
  } finally {
    for (const dir of dirs) rmSync(dir, { recursive: true, force: true });
  }
}

/** Optimizers that use the step number, or that have state with initial values other than 0. */
const optimizers: Pick<TinyOptions, 'lr' | 'offload' | 'optimizer'>[] = [
  {
    lr: 0.05,
    offload: false,
    optimizer: { type: 'SGD', params: { momentum: 0.9, dampening: 0.5 } },
  },
  {
    lr: 0.02,
    offload: true,
    optimizer: { type: 'Adagrad', params: { lr_decay: 0.1, initial_accumulator_value: 1e-4 } },
  },
  { lr: 1e-3, offload: false, optimizer: { type: 'Lion', params: { weight_decay: 0.1 } } },
];

export const cases: Case[] = [
  {
    name: 'resume in a new process equals one run: bf16, offload, dropout',
    run: (device) => resumeEqualsOneRun(device, { precision: 'bf16', offload: true, dropout: 0.1 }),
  },
  {
    name: 'resume in a new process equals one run: bf16, speculative offload, clipping at times',
    run: (device) =>
      resumeEqualsOneRun(device, {
        precision: 'bf16',
        offload: true,
        speculative: true,
        clip: 1.4,
        dropout: 0.1,
      }),
  },
  {
    name: 'resume in a new process equals one run: fp16 with overflows, resident',
    run: (device) => resumeEqualsOneRun(device, { precision: 'fp16', offload: false }),
  },
  {
    name: 'resume in a new process equals one run: bf16, gradients summed in fp32, offload of all',
    run: (device) =>
      resumeEqualsOneRun(device, {
        precision: 'bf16',
        checkpointing: true,
        checkpoints: { cpu_checkpointing: true, keep_attention: true },
        gradients: 'fp32',
        accumulation: 2,
        offload: true,
      }),
  },
  ...optimizers.map((options) => ({
    name: `resume in a new process equals one run: bf16, ${JSON.stringify(options.optimizer)}`,
    run: (device: Device) => resumeEqualsOneRun(device, { precision: 'bf16', ...options }),
  })),
];
