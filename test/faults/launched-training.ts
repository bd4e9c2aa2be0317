// Starts training under `ds`, breaks it, and resumes it: what the tests of faults have in common.
import { existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { DS, type Finished, Run } from '../launch/jobs.js';
import { noteOf, type Outcome, type Training } from './training-job.js';

const HOOK = join(__dirname, '..', 'support', 'run-typescript.cjs');
const PROGRAM = join(__dirname, 'training-process.ts');
/** Seconds that ranks have to tell what they saw before the launcher kills them. */
const GRACE = '2';

export interface Ended extends Finished {
  /** By rank; null where a rank did not live to write it down. */
  outcomes: (Outcome | null)[];
}

/** A training under way. */
export interface Launched {
  run: Run;
  training: Training;
  /** SIGKILL to one rank. */
  kill(rank: number): void;
  /** Resolves once `ds` has ended; rejects when a process of the run is left. */
  ended(): Promise<Ended>;
}

/** Trainings that share a folder of checkpoints. */
export class Trainings {
  private readonly runs: Run[] = [];
  private readonly folder = mkdtempSync(join(tmpdir(), 'ds-faults-'));

  constructor(
    private readonly ranks: number,
    private readonly base: Pick<Training, 'stage' | 'offload'>,
  ) {
    const script = `require(${JSON.stringify(HOOK)}); require(${JSON.stringify(PROGRAM)});`;
    writeFileSync(join(this.folder, 'train.js'), script);
  }

  /** `timeout` is DEEPSPEED_TIMEOUT, in minutes. */
  launch(more: Partial<Training>, timeout?: number): Launched {
    const { ranks, folder } = this;
    const training: Training = {
      ...{ accumulation: 1, steps: 4, resume: false, save: 'never', fault: null },
      ...{ folder, name: `run${this.runs.length}`, ...this.base, ...more },
    };
    const args = ['--num_procs', String(ranks), '--grace_period', GRACE, 'train.js'];
    const env = {
      DS_NUM_THREADS: '1',
      ...(timeout === undefined ? {} : { DEEPSPEED_TIMEOUT: String(timeout) }),
    };
    const run = new Run([...DS, ...args, JSON.stringify(training)], folder, env);
    this.runs.push(run);
    return {
      run,
      training,
      kill: (rank) => {
        process.kill(Number(readFileSync(noteOf(training, rank, 'pid'), 'utf8')), 'SIGKILL');
      },
      ended: async () => {
        const finished = await run.finished;
        const left = run.processes();
        if (left.length > 0) throw new Error(`processes ${left.join(', ')} are left`);
        const outcomes = Array.from({ length: ranks }, (_, rank) =>
          outcomeOf(noteOf(training, rank, 'end')),
        );
        return { ...finished, outcomes };
      },
    };
  }

  /** Resumes from the last checkpoint, and trains as far without any fault; returns both. */
  async resumeAndCompare(): Promise<{ resumed: Outcome[]; reference: Outcome[] }> {
    const resumed = await this.whole({ resume: true });
    const reference = await this.whole({ steps: resumed[0]?.to });
    return { resumed, reference };
  }

  async dispose(): Promise<void> {
    for (const run of this.runs) {
      for (const pid of run.processes()) process.kill(pid, 'SIGKILL');
      await run.gone();
    }
    rmSync(this.folder, { recursive: true, force: true });
  }

  private async whole(more: Partial<Training>): Promise<Outcome[]> {
    const { code, stderr, outcomes } = await this.launch(more).ended();
    if (code !== 0) throw new Error(`ended with ${code}: ${stderr}`);
    return outcomes as Outcome[];
  }
}

function outcomeOf(file: string): Outcome | null {
  return existsSync(file) ? (JSON.parse(readFileSync(file, 'utf8')) as Outcome) : null;
}
