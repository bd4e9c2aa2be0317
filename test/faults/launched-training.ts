// Starts training with `ds`, injects a fault, and resumes; shared by the tests of faults.
import { existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { DS, type Finished, Run, scriptOf } from '../launch/jobs.js';
import { checkpointsOf, noteOf, type Outcome, type Training } from './training-job.js';

const PROGRAM = join(__dirname, 'training-process');
/** Seconds for ranks on a busy machine to report before the launcher kills them. */
const GRACE_SECONDS = 20;
/** Longer than any launch needs; processes are killed after it, and the test fails. */
const LIMIT_MS = 300_000;
/** Default number of steps of a run. */
const STEPS = 4;

export type Setting = Pick<Training, 'device' | 'stage' | 'offload'>;

export interface Ended extends Finished {
  /** By rank; null for a rank that died before it wrote its outcome. */
  outcomes: (Outcome | null)[];
}

/** A running training. */
export interface Launched {
  run: Run;
  training: Training;
  /** Sends SIGKILL to one rank. */
  kill(rank: number): void;
  /** Resolves when `ds` has ended; rejects if a process of the run remains, or had to be killed. */
  ended(): Promise<Ended>;
}

/** Trainings with one folder of checkpoints. */
export class Trainings {
  private readonly runs: Run[] = [];
  readonly folder = mkdtempSync(join(tmpdir(), 'ds-faults-'));

  constructor(
    readonly ranks: number,
    private readonly base: Setting,
  ) {
    writeFileSync(join(this.folder, 'train.js'), scriptOf(PROGRAM));
  }

  /** `timeout` is DEEPSPEED_TIMEOUT, in minutes. */
  launch(more: Partial<Training>, timeout?: number): Launched {
    const { ranks, folder } = this;
    const training: Training = {
      accumulation: 1,
      steps: STEPS,
      resume: false,
      save: 'never',
      fault: null,
      folder,
      name: `run${this.runs.length}`,
      ...this.base,
      ...more,
    };
    const run = this.start(training, timeout);
    const overdue = killAfter(run, LIMIT_MS);
    return {
      run,
      training,
      kill: (rank) => {
        process.kill(Number(readFileSync(noteOf(training, rank, 'pid'), 'utf8')), 'SIGKILL');
      },
      ended: async () => {
        const finished = await run.finished;
        if (overdue()) throw new Error(`did not end within ${LIMIT_MS} ms: ${finished.stderr}`);
        const left = run.processes();
        if (left.length > 0) throw new Error(`processes ${left.join(', ')} are left`);
        const outcomes = Array.from({ length: ranks }, (_, rank) =>
          outcomeOf(noteOf(training, rank, 'end')),
        );
        return { ...finished, outcomes };
      },
    };
  }

  /**
   * Resumes from the last checkpoint, and also trains the same steps without a fault; returns both.
   */
  async resumeAndCompare(): Promise<{ resumed: Outcome[]; reference: Outcome[] }> {
    const latest = readFileSync(join(checkpointsOf(this), 'latest'), 'utf8');
    const saved = Number(/^global_step(\d+)/.exec(latest)?.[1]);
    const [resumed, reference] = await Promise.all([
      this.whole({ resume: true }),
      this.whole({ steps: saved + STEPS }),
    ]);
    return { resumed, reference };
  }

  async dispose(): Promise<void> {
    for (const run of this.runs) {
      for (const pid of run.processes()) process.kill(pid, 'SIGKILL');
      await run.whenGone();
    }
    rmSync(this.folder, { recursive: true, force: true });
  }

  private start(training: Training, timeout?: number): Run {
    const count = [training.device === 'cpu' ? '--num_procs' : '--num_gpus', String(this.ranks)];
    const args = [...count, '--grace_period', String(GRACE_SECONDS), 'train.js'];
    const env = {
      DS_NUM_THREADS: '1',
      DS_TEST_GATE: join(this.folder, `${training.name}.gate`),
      DS_TEST_RANKS: String(this.ranks),
      ...(timeout === undefined ? {} : { DEEPSPEED_TIMEOUT: String(timeout) }),
    };
    const run = new Run([...DS, ...args, JSON.stringify(training)], this.folder, env);
    this.runs.push(run);
    return run;
  }

  private async whole(more: Partial<Training>): Promise<Outcome[]> {
    const { code, stderr, outcomes } = await this.launch(more).ended();
    if (code !== 0) throw new Error(`ended with ${code}: ${stderr}`);
    return outcomes as Outcome[];
  }
}

/** Kills all processes of a run after a time limit; returns whether it had to. */
function killAfter(run: Run, milliseconds: number): () => boolean {
  let killed = false;
  const timer = setTimeout(() => {
    killed = true;
    for (const pid of run.processes()) process.kill(pid, 'SIGKILL');
  }, milliseconds);
  void run.finished.then(() => clearTimeout(timer));
  return () => killed;
}

function outcomeOf(file: string): Outcome | null {
  return existsSync(file) ? (JSON.parse(readFileSync(file, 'utf8')) as Outcome) : null;
}
