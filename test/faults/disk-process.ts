// A rank with optimizer state or weights on disk. It trains, saves, makes its disk fail, and
// reports the errors.
import { writeFileSync } from 'node:fs';

import { type DsError, type Engine, initDistributed } from '../../lib/index.js';
import { setFileEngine } from '../../lib/runtime/file.js';
import { type TinyOptions, tinyEngine, trainTiny } from '../e2e/tiny-training.js';

export interface DiskJob {
  /** Null: state stays in memory. */
  nvme: string | null;
  /** The state on the disk. */
  what: 'optimizer state' | 'weights';
  /** Folder of checkpoints. */
  folder: string;
  /** Resume from the latest one. */
  resume: boolean;
  /** A checkpoint is saved after this step, and then `armed` is created. Null: never. */
  saveAfter: number | null;
  armed: string;
  steps: number;
}

export type Report = Pick<DsError, 'code' | 'op' | 'expected' | 'got' | 'hint'>;

export interface DiskOutcome {
  losses: number[];
  error: Report | null;
  /** The error of a save after that. */
  saving: Report | null;
}

const options: Omit<TinyOptions, 'offload'> = {
  precision: 'bf16',
  clip: 1.4,
  zero: { stage: 2, sub_group_size: 2000 },
  disk: { offload: { buffer_count: 3 }, aio: { block_size: 8192 } },
};

/** Keeps no weights between uses. */
const weightsOnDisk = (nvme: string): TinyOptions['zero'] => ({
  stage: 3,
  stage3_param_persistence_threshold: 0,
  stage3_max_live_parameters: 0,
  offload_param: {
    device: 'nvme',
    nvme_path: nvme,
    buffer_count: 3,
    buffer_size: 2000,
    max_in_cpu: 0,
  },
});

function homeOf({ nvme, what }: DiskJob): Pick<TinyOptions, 'offload' | 'nvme' | 'zero'> {
  if (nvme === null) return { offload: false };
  if (what === 'weights') return { offload: true, zero: weightsOnDisk(nvme) };
  return { offload: true, nvme };
}

function reportOf(thrown: unknown): Report {
  const { code, op, expected, got, hint } = thrown as DsError;
  return { code, op, expected, got, hint };
}

async function main(): Promise<void> {
  const job = JSON.parse(process.argv[2] as string) as DiskJob;
  setFileEngine('threads'); // Direct calls, without a ring.
  const distributed = await initDistributed({ device: 'cpu' });
  const outcome: DiskOutcome = { losses: [], error: null, saving: null };
  const engine = await tinyEngine({ ...options, ...homeOf(job) }, distributed.world.device).catch(
    (thrown) => {
      outcome.error = reportOf(thrown);
      return null;
    },
  );
  if (engine) await train(engine, job, outcome);
  await distributed.destroy();
  console.log(JSON.stringify(outcome));
}

async function train(engine: Engine, job: DiskJob, outcome: DiskOutcome): Promise<void> {
  if (job.resume) await engine.loadCheckpoint(job.folder);
  try {
    while (engine.globalSteps < job.steps) {
      outcome.losses.push(...trainTiny(engine, engine.globalSteps, engine.globalSteps + 1));
      if (engine.globalSteps !== job.saveAfter) continue;
      await engine.saveCheckpoint(job.folder);
      writeFileSync(job.armed, '');
    }
  } catch (thrown) {
    outcome.error = reportOf(thrown);
    await engine.saveCheckpoint(job.folder, { tag: 'after' }).catch((again) => {
      outcome.saving = reportOf(again);
    });
  }
  engine.destroy();
}

void main();
