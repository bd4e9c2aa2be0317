// A quiet point: what nobody holds has been collected, so that counters of the whole process move
// by what a test does.
import { setImmediate } from 'node:timers/promises';
import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';

import { liveTensors } from '../../lib/tensor/index.js';

let collector: (() => void) | null = null;

/** Collects garbage; finalizers run when the event loop turns. */
export function collectGarbage(): void {
  if (!collector) {
    setFlagsFromString('--expose-gc');
    collector = runInNewContext('gc') as () => void;
  }
  collector();
}

/** Collections in a row after which nothing has moved. */
const STILL = 3;
/**
 * Of the event loop, for the finalizers of one collection: each registry with something to finalize
 * has a turn of its own, in no order that a program could know.
 */
const TURNS = 20;
const PATIENCE_MS = 180_000;

/**
 * Resolves when the finalizers of what earlier tests left have run: `count` stands still, or is
 * `least`, below which it cannot be. Await it before reading a counter of the whole process: live
 * tensors, memory, handles. Each round waits until an object that was garbage at the collection has
 * been finalized, and then gives the other registries their turns: on a busy machine that takes
 * many turns of the event loop, and finalizers that have not run are tensors that are still
 * counted.
 */
export async function quiet(
  count: () => number = liveTensors,
  least = Number.NEGATIVE_INFINITY,
): Promise<void> {
  const deadline = Date.now() + PATIENCE_MS;
  for (let still = 0; still < STILL; ) {
    const before = count();
    if (before <= least) return;
    await collected(deadline);
    still = count() === before ? still + 1 : 0;
    if (Date.now() > deadline) throw new Error(`The heap does not come to rest: ${count()} live`);
  }
}

/** A collection, and all finalizers that it has called for. */
async function collected(deadline: number): Promise<void> {
  let isFinalized = false;
  const registry = new FinalizationRegistry(() => {
    isFinalized = true;
  });
  while (!isFinalized) {
    // Another object in each round: something may still point at the one before.
    (() => registry.register({}, null))();
    await setImmediate();
    collectGarbage();
    for (let turn = 0; turn < TURNS && !isFinalized; ++turn) await setImmediate();
    if (Date.now() > deadline)
      throw new Error('No finalizer runs: does a test hold the event loop?');
  }
  for (let turn = 0; turn < TURNS; ++turn) await setImmediate();
}
