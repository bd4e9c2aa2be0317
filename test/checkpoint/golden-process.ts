// One rank that records golden checkpoints, or goes on from recorded ones and reports how.
import { join } from 'node:path';

import { initDistributed } from '../../lib/comm/index.js';
import {
  CLIENT_STATE,
  type Continuation,
  goldenEngine,
  KINDS,
  STEPS,
  trainGolden,
} from './golden-training.js';

export interface GoldenJob {
  what: 'record' | 'resume';
  /** With a folder for each kind. */
  dir: string;
  ranks: 1 | 2;
}

/** How each kind goes on, and the client state that it had. */
export type GoldenReport = Record<string, { next: Continuation; clientState: unknown }>;

async function main({ what, dir, ranks }: GoldenJob): Promise<void> {
  const world = await initDistributed({ device: 'cpu' });
  const report: GoldenReport = {};
  for (const kind of KINDS.filter((kind) => kind.ranks === ranks)) {
    const training = await goldenEngine(kind, what === 'record' ? 1234 : 99);
    const { engine } = training;
    const folder = join(dir, kind.name);
    let clientState: unknown = CLIENT_STATE;
    if (what === 'record') {
      await trainGolden(training, 0, STEPS.before);
      const { asynchronous } = kind;
      await engine.saveCheckpoint(folder, { tag: 't', clientState: CLIENT_STATE, asynchronous });
    } else {
      ({ clientState } = await engine.loadCheckpoint(folder));
    }
    const next = await trainGolden(training, STEPS.before, STEPS.before + STEPS.after);
    await engine.checkpointDone();
    engine.destroy();
    report[kind.name] = { next, clientState };
  }
  await world.destroy();
  console.log(JSON.stringify(report));
}

void main(JSON.parse(process.argv[2] ?? '') as GoldenJob);
