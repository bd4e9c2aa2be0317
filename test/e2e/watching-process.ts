// One rank that trains with logging enabled, and reports the counts of the engine and the log.
import { comm, type DsConfig, initialize } from '../../lib/index.js';
import { type TinyOptions, tinyConfig, tinyModel, trainTiny } from './tiny-training.js';

/** The one argument, as JSON. */
export interface WatchedJob {
  device: string;
  tiny: TinyOptions;
  more: DsConfig;
  steps: number;
  /** Path of a trace of all steps. */
  trace?: string;
}

export interface WatchedReport {
  phases: { forward: number; backward: number; reduce: number; step: number } | null;
  /** Null without a comms logger. */
  totals: comm.CommsTotal[] | null;
  /** Notices of initialize() about keys without effect. */
  notices: string[];
  /** Losses of the micro-batches on this rank; each rank has its own batches. */
  losses: number[];
}

async function main({ device, tiny, more, steps, trace }: WatchedJob): Promise<void> {
  const job = await comm.initDistributed(device === 'cpu' ? { device } : {});
  const config = { ...tinyConfig(tiny), ...more };
  const notices: string[] = [];
  process.on('warning', ({ name, message }) => name === 'DsNotice' && notices.push(message));
  const { engine } = await initialize({ model: tinyModel(tiny), config, distributed: job });
  if (trace) engine.trace(trace, { steps });
  const first = job.rank * steps;
  const losses = trainTiny(engine, first, first + steps);
  engine.synchronize();
  const { logger } = job.world;
  const report: WatchedReport = {
    phases: engine.phaseTimes(),
    totals: logger?.totals() ?? null,
    notices,
    losses,
  };
  comm.logSummary();
  engine.destroy();
  await job.destroy();
  console.log(JSON.stringify(report));
}

void main(JSON.parse(process.argv[2] ?? '') as WatchedJob);
