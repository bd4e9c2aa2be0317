// One rank of a job of Trainers with grpo(); it reports logs, rollouts and weights, or its error.
import { setTimeout as pause } from 'node:timers/promises';
import { type Distributed, initDistributed, type MeshOptions } from '../../lib/comm/index.js';
import {
  type DsError,
  grpo,
  type Reward,
  rloo,
  type ToolInput,
  Trainer,
  type TrainerOptions,
} from '../../lib/index.js';
import { InferenceEngine } from '../../lib/inference/index.js';
import { even, policyModel, prompts, tokenizer } from './grpo-tiny.js';
import { weightsOf } from './tiny.js';

/** A run of GRPO. */
export interface RolloutRun {
  options: Partial<TrainerOptions>;
  method?: object;
  isLeaveOneOut?: boolean;
  /** What the last rank does after the first update. */
  fault?: 'kill' | 'throw' | 'stop';
  resume?: boolean;
  /** Whether completions of some prompts continue after a tool. */
  usesTool?: boolean;
  /** Whether the last rank waits before each request. */
  isSlow?: boolean;
}

/** The job of all ranks: runs in sequence. */
export interface RolloutJob {
  runs: RolloutRun[];
  mesh?: MeshOptions;
}

/** What a rank reports of a run. */
export interface RolloutReport {
  losses: number[];
  rewards: (number | undefined)[];
  completions: string[][];
  /** Share of completions that another rank sampled. */
  stolen: (number | undefined)[];
  /** Requests that this rank sampled. */
  sampled: number;
  weights: Record<string, number[]> | null;
  error: [code: string, message: string] | null;
  reason: string | null;
}

/** Long enough for the other rank to sample all other prompts. */
const SLOW_MS = 2000;

/** Ends turns at even tokens; the number of turns depends on the prompt. */
const TOOL = {
  sampling: { maxNewTokens: 6, stopTokens: Array.from({ length: 500 }, (_, i) => 2 * i) },
  tool: ({ prompt, turn }: ToolInput): string | null =>
    turn < `${prompt}`.length % 3 ? ' a rank' : null,
};

async function train(run: RolloutRun, job: Distributed): Promise<RolloutReport> {
  const report: RolloutReport = {
    losses: [],
    rewards: [],
    completions: [],
    weights: null,
    error: null,
    reason: null,
    stolen: [],
    sampled: 0,
  };
  const isLast = job.rank === job.worldSize - 1;
  const judge: Reward = (input) => {
    if (run.fault === 'throw' && isLast && input.step > 0) throw new Error('no judge');
    return even(input);
  };
  const options = {
    rewards: { of: judge, name: 'even' },
    generations: 4,
    sampling: { maxNewTokens: 6 },
    ...run.method,
    ...(run.usesTool && TOOL),
  };
  const trainer = new Trainer({
    model: policyModel(),
    tokenizer,
    train: await prompts(),
    progress: false,
    device: 'cpu',
    distributed: job,
    lr: 1e-2,
    schedule: 'constant',
    log: { every: 1 },
    seed: 1,
    method: run.isLeaveOneOut ? rloo(options) : grpo(options),
    ...run.options,
  } as TrainerOptions);
  const abort = new AbortController();
  const { generateBatch } = InferenceEngine.prototype;
  InferenceEngine.prototype.generateBatch = async function (requests) {
    report.sampled += requests.length;
    if (run.isSlow && isLast) await pause(SLOW_MS);
    return generateBatch.call(this, requests);
  };
  try {
    const { resume = false } = run;
    for await (const event of trainer.train({ resume, signal: abort.signal })) {
      if (event.type === 'log') {
        report.losses.push(event.loss);
        report.rewards.push(event.metrics.reward);
        report.stolen.push(event.metrics['sampling/stolen_ratio']);
      }
      if (event.type === 'rollout') {
        report.completions.push(event.samples.map(({ completion }) => completion));
      }
      if (event.type === 'end') report.reason = event.reason;
      if (event.type !== 'step' || event.step !== 1 || !isLast) continue;
      if (run.fault === 'stop') abort.abort();
      if (run.fault === 'kill') setImmediate(() => process.kill(process.pid, 'SIGKILL'));
    }
    const engine = await trainer.engine();
    const weights = engine.withFullWeights(() => weightsOf(engine.module));
    if (job.rank === 0) report.weights = weights;
  } catch (error) {
    const { code = 'none', message } = error as DsError;
    report.error = [code, message];
  }
  await trainer.destroy().catch(() => {});
  InferenceEngine.prototype.generateBatch = generateBatch;
  return report;
}

async function main(): Promise<void> {
  const { runs, mesh = {} } = JSON.parse(process.argv.at(-1) as string) as RolloutJob;
  const job = await initDistributed({ mesh, device: 'cpu' });
  const reports: RolloutReport[] = [];
  for (const run of runs) reports.push(await train(run, job));
  await job.destroy().catch(() => {});
  process.stdout.write(`${JSON.stringify(reports)}\n`);
}

void main();
