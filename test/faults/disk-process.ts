// A rank whose optimizer state is on disk: trains, saves, lets its disk fail, and tells what it saw.
import { writeFileSync } from 'node:fs';

import { type DsError, initDistributed } from '../../lib/index.js';
import { setFileEngine } from '../../lib/runtime/file.js';
import { type TinyOptions, tinyEngine, trainTiny } from '../e2e/tiny-training.js';

export interface DiskJob {
  /** Null: state stays in memory. */
  nvme: string | null;
  /** Checkpoints are here. */
  folder: string;
  /** Go on from the latest of them. */
  resume: boolean;
  /** A checkpoint is written after this step, and `armed` then made. Null: never. */
  saveAfter: number | null;
  armed: string;
  steps: number;
}

export type Told = Pick<DsError, 'code' | 'op' | 'expected' | 'got' | 'hint'>;

export interface DiskOutcome {
  losses: number[];
  error: Told | null;
  /** What saving met after that. */
  saving: Told | null;
}

const options: Omit<TinyOptions, 'offload'> = {
  precision: 'bf16',
  clip: 1.4,
  zero: { stage: 2, sub_group_size: 2000 },
  disk: { offload: { buffer_count: 3 }, aio: { block_size: 8192 } },
};

function told(thrown: unknown): Told {
  const { code, op, expected, got, hint } = thrown as DsError;
  return { code, op, expected, got, hint };
}

async function main(): Promise<void> {
  const job = JSON.parse(process.argv[2] as string) as DiskJob;
  setFileEngine('threads'); // Nothing stands before the calls of a ring.
  const distributed = await initDistributed({ device: 'cpu' });
  const home = job.nvme === null ? { offload: false } : { offload: true, nvme: job.nvme };
  const engine = await tinyEngine({ ...options, ...home }, distributed.world.device);
  if (job.resume) await engine.loadCheckpoint(job.folder);
  const outcome: DiskOutcome = { losses: [], error: null, saving: null };
  try {
    while (engine.globalSteps < job.steps) {
      outcome.losses.push(...trainTiny(engine, engine.globalSteps, engine.globalSteps + 1));
      if (engine.globalSteps !== job.saveAfter) continue;
      await engine.saveCheckpoint(job.folder);
      writeFileSync(job.armed, '');
    }
  } catch (thrown) {
    outcome.error = told(thrown);
    await engine.saveCheckpoint(job.folder, { tag: 'after' }).catch((again) => {
      outcome.saving = told(again);
    });
  }
  engine.destroy();
  await distributed.destroy();
  console.log(JSON.stringify(outcome));
}

void main();
