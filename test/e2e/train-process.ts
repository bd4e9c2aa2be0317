// A training process for tests: trains the tiny model, saving to and resuming from a folder, and
// prints JSON.
import { device } from '../../lib/index.js';
import { type TinyOptions, tinyEngine, trainTiny, weightBits } from './tiny-training.js';

/** The one argument, as JSON. */
export interface TrainJob {
  device: string;
  dir: string;
  /** Global steps [from, to); from > 0 resumes from the latest checkpoint in `dir`. */
  from: number;
  to: number;
  options: TinyOptions;
}

export interface TrainReport {
  losses: number[];
  weights: [string, string][];
}

async function main(job: TrainJob): Promise<void> {
  const on = device(job.device);
  on.setDeterministic(true);
  const engine = await tinyEngine(job.options, on);
  if (job.from > 0) await engine.loadCheckpoint(job.dir);
  const losses = trainTiny(engine, job.from, job.to);
  await engine.saveCheckpoint(job.dir);
  const report: TrainReport = { losses, weights: [...weightBits(engine)] };
  process.stdout.write(JSON.stringify(report));
}

main(JSON.parse(process.argv[2] ?? '{}') as TrainJob).catch((error) => {
  console.error(error);
  process.exitCode = 1;
});
