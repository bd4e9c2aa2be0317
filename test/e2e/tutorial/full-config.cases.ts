// DeepSpeed's tutorial configuration trains as it stands: fp16, accumulation, offload, warm-up,
// TensorBoard.
import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { mkdtempSync, readdirSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { promisify } from 'node:util';
import type { Device } from '../../../lib/runtime/device.js';
import { packageRoot } from '../../../lib/runtime/package-root.js';
import { commandFor } from '../../comm/ranks.js';
import { readEvents } from '../../monitor/event-reader.js';
import type { Case } from '../../support/case.js';
import type { TutorialJob, TutorialReport } from './full-config-process.js';

const FILE = join(packageRoot(), 'test/golden/ds_config.full.jsonc');
const STEPS = 20;
const BATCH = 16;
const BASE_LR = 1e-5;

/** Runs the program in `cwd`, where the file's relative output path leads. */
async function train(device: Device, cwd: string): Promise<TutorialReport & { lines: string[] }> {
  const job: TutorialJob = { config: FILE, device: device.name, steps: STEPS };
  const program = [...commandFor('../e2e/tutorial/full-config-process'), JSON.stringify(job)];
  const { stdout } = await promisify(execFile)(process.execPath, program, { cwd });
  const lines = stdout.trimEnd().split('\n');
  return { ...(JSON.parse(lines.pop() ?? '') as TutorialReport), lines };
}

/** WarmupLR's rate at the update after `steps`. */
const rateAfter = (steps: number): number => (BASE_LR * Math.log(steps)) / Math.log(1000);

function learns({ losses, skipped, lossScale, moved, parameters, rates }: TutorialReport): void {
  assert.equal(skipped, 0);
  assert.equal(lossScale, 2 ** 12);
  // The first two updates of WarmupLR have rate 0.
  const [start, end] = [losses[2], losses.at(-1)] as [number, number];
  assert.ok(end < start - 2e-3, `${losses}`);
  assert.ok(moved > parameters / 2, `${moved} of ${parameters} parameters moved`);
  assert.ok(Math.abs((rates[0] as number) - rateAfter(STEPS)) < 1e-12, `${rates}`);
}

/**
 * One warning for each key without effect and for the unknown one, in the order of the file, each
 * with its line.
 */
function warns({ warnings }: TutorialReport): void {
  const keys = warnings.map(({ code, message }) => {
    assert.equal(code, 'DS_NOTICE');
    const [, line, key] = /ds_config\.full\.jsonc:(\d+):\d+: zero_optimization\.(\w+) /.exec(
      message,
    ) as RegExpExecArray;
    return [Number(line), key];
  });
  assert.deepEqual(keys, [
    [22, 'offload_param'],
    [23, 'overlap_comm'],
    [26, 'stage3_prefetch_bucket_size'],
    [29, 'stage3_max_act_size'],
  ]);
}

/** The event file has every step's loss, rate and scale, by samples. */
function records(folder: string, { losses }: TutorialReport): void {
  const job = join(folder, 'tensorboard_logs', 'my_deepspeed_experiment');
  const [name, ...others] = readdirSync(job);
  assert.deepEqual(others, []);
  const [, ...events] = readEvents(readFileSync(join(job, name as string)));
  const tags = ['train_loss', 'lr', 'loss_scale'].map((metric) => `Train/Samples/${metric}`);
  const found = events.map(({ step, values }) => ({ step, tag: values[0]?.tag }));
  const expected = losses.flatMap((_, i) => tags.map((tag) => ({ step: (i + 1) * BATCH, tag })));
  assert.deepEqual(found, expected);
  const reported = events
    .filter((_, i) => i % tags.length === 0)
    .map(({ values }) => values[0]?.value);
  losses.forEach((loss, i) => {
    assert.ok(Math.abs((reported[i] as number) - loss) < 1e-5, `${reported[i]}, not ${loss}`);
  });
}

async function tutorial(device: Device): Promise<void> {
  const folder = mkdtempSync(join(tmpdir(), 'ds-tutorial-'));
  try {
    const report = await train(device, folder);
    learns(report);
    warns(report);
    records(folder, report);
    const starts = report.lines.map((line) => line.split(',')[0]);
    assert.deepEqual(starts, ['step=10', 'step=20']);
  } finally {
    rmSync(folder, { recursive: true });
  }
}

export const cases: Case[] = [
  { name: 'the tutorial configuration trains as it stands', run: tutorial },
];
