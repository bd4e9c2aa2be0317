// One rank of a job of Trainers with equal options; it reports events and results.
import { setTimeout as pause } from 'node:timers/promises';
import type { Distributed, MeshOptions } from '../../lib/comm/index.js';
import {
  initDistributed,
  Trainer,
  type TrainerEvent,
  type TrainerOptions,
} from '../../lib/index.js';
import { samples, tinyModel, type Window, weightsOf } from './tiny.js';

export interface TrainerJob {
  device: 'cpu' | 'cuda';
  mesh?: MeshOptions | undefined;
  /** Run in sequence. */
  runs: RanksRun[];
}

export interface RanksRun {
  options: Partial<TrainerOptions<Window>>;
  /** Numbers of samples for training and evaluation. */
  train: number;
  judged?: number;
  /** Tokens per sample. */
  tokens?: number;
  dropout?: number;
  /** After this update the last rank gets a SIGTERM, or an abort. */
  stop?: { step: number; by: 'SIGTERM' | 'abort' };
  resume?: boolean;
  /** Metrics of the evaluations: separate sums for each rank. */
  scores?: number[][];
}

export interface RanksReport {
  /** "log 3", "save 4", ...; logs and evaluations with their numbers. */
  events: string[];
  weights: Record<string, number[]> | null;
  metrics: Record<string, number> | null;
  predictions: number[][] | null;
}

const numbers = (event: TrainerEvent): string => {
  if (event.type === 'log') return ` ${event.loss} ${event.gradNorm} ${event.tokens}`;
  if (event.type === 'evaluate') return ` ${JSON.stringify(event.metrics)} ${event.isBest}`;
  if (event.type === 'end') return ` ${event.reason} ${JSON.stringify(event.best?.step ?? null)}`;
  return '';
};

async function train(run: RanksRun, { world, rank, worldSize: ranks }: Distributed) {
  let evaluations = 0;
  const nextScore = () => {
    const localValue = run.scores?.[Math.min(evaluations++, run.scores.length - 1)]?.[
      rank
    ] as number;
    return { score: { sum: localValue, count: 1 } };
  };
  const judged = run.judged ? { data: samples(run.judged, 300, run.tokens), every: 1 } : undefined;
  const trainer = new Trainer<Window>({
    model: tinyModel(run.dropout),
    train: samples(run.train, 0, run.tokens),
    device: world.device,
    progress: false,
    lr: 3e-3,
    log: { every: 1 },
    eval: judged && { ...judged, ...(run.scores ? { metrics: nextScore } : {}) },
    ...run.options,
  });
  const abort = new AbortController();
  const events: string[] = [];
  for await (const event of trainer.train({ signal: abort.signal, resume: run.resume ?? false })) {
    events.push(`${event.type} ${event.step}${numbers(event)}`);
    const isNow = event.type === 'step' && event.step === run.stop?.step && rank === ranks - 1;
    if (isNow && run.stop?.by === 'abort') abort.abort();
    if (isNow && run.stop?.by === 'SIGTERM') {
      process.kill(process.pid, 'SIGTERM');
      await pause(20); // Signals arrive at any time.
    }
  }
  const metrics = run.judged ? await trainer.evaluate() : null;
  const rows = run.judged ? await trainer.predict(samples(run.judged, 300, run.tokens)) : null;
  const engine = await trainer.engine();
  const weights = engine.withFullWeights(() => weightsOf(engine.module));
  await trainer.destroy();
  const report: RanksReport = {
    events,
    metrics,
    weights: rank === 0 ? weights : null,
    predictions: rows?.map((row) => [...row].map(Number)) ?? null,
  };
  return report;
}

async function main(): Promise<void> {
  const { device, mesh = {}, runs } = JSON.parse(process.argv.at(-1) as string) as TrainerJob;
  const job = await initDistributed({ mesh, ...(device === 'cpu' ? { device } : {}) });
  const reports: RanksReport[] = [];
  for (const run of runs) reports.push(await train(run, job));
  await job.destroy();
  process.stdout.write(`${JSON.stringify(reports)}\n`);
}

void main();
