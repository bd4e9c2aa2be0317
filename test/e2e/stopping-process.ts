// A rank that trains in a plain loop without a turn of the event loop, until a stop request.
import { writeSync } from 'node:fs';

import { type Engine, initDistributed, initialize, type Tensor } from '../../lib/index.js';
import { tinyBatch, tinyConfig, tinyModel } from './tiny-training.js';

export interface Stopping {
  /** Steps after which the loop ends without a request. */
  steps: number;
  /** Destroy the engine before the loop, which releases its signal handlers. */
  destroyed?: boolean;
  /** Never call stopRequested(). */
  deaf?: boolean;
  /** Call requestStop() after this step, on the last rank. */
  request?: number;
  /** After the loop, stay busy for so many seconds without a turn of the event loop. */
  busy?: number;
}

export interface Stopped {
  rank: number;
  pid: number;
  steps: number;
  requested: boolean;
  aborted: string | null;
  /** Calls of the program's own handler during the loop, and after a turn of the event loop. */
  heard: [number, number];
}

/** Writes without buffering, so that a reader of the pipe sees the last finished step. */
const say = (line: object): void => void writeSync(1, `${JSON.stringify(line)}\n`);

function step(engine: Engine, index: number): void {
  const { tokens, targets } = tinyBatch(index, engine.device);
  engine.backward(engine.forward<Tensor>(tokens, targets));
  engine.step();
  // Takes the step decision early on rank 0 only, like programs that print the rate there.
  if (engine.globalRank === 0) engine.getLr();
  tokens.dispose();
  targets.dispose();
}

async function main(): Promise<void> {
  const options = JSON.parse(process.argv.at(-1) as string) as Stopping;
  const job = await initDistributed();
  const config = tinyConfig({ precision: 'fp32', offload: false, zero: { stage: 2 } });
  const { engine } = await initialize({ model: tinyModel(), config, device: 'cpu' });
  const { globalRank: rank, worldSize } = engine;
  let heard = 0;
  if (!options.deaf) {
    process.on('SIGINT', () => heard++);
    void engine.stopRequested;
  }
  if (options.destroyed) engine.destroy();
  let steps = 0;
  while (steps < options.steps && (options.deaf || !engine.stopRequested)) {
    if (options.destroyed) steps++;
    else step(engine, worldSize * steps++ + rank);
    if (steps === 2) say({ training: rank, pid: process.pid });
    if (steps === options.request && rank === worldSize - 1) engine.requestStop();
  }
  const during = heard;
  // The engine polls signals within the first turn, so handlers have run by the second.
  for (let turn = 0; turn < 2; ++turn) await new Promise((resolve) => setImmediate(resolve));
  const { reason } = options.deaf ? { reason: undefined } : engine.stopSignal;
  const stopped: Stopped = {
    rank,
    pid: process.pid,
    steps,
    heard: [during, heard],
    requested: !options.deaf && engine.stopRequested,
    aborted: reason instanceof Error ? reason.message : null,
  };
  say(stopped);
  const until = performance.now() + 1000 * (options.busy ?? 0);
  while (performance.now() < until);
  engine.destroy();
  await job.destroy();
}

void main();
