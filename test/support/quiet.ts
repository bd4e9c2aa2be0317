// Waits until garbage is collected, so that counters of the process change only by the test's own
// actions.
import { setImmediate } from 'node:timers/promises';
import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';

import { liveTensors } from '../../lib/tensor/index.js';

let collector: (() => void) | null = null;

/** Collects garbage; finalizers run on later turns of the event loop. */
export function collectGarbage(): void {
  if (!collector) {
    setFlagsFromString('--expose-gc');
    collector = runInNewContext('gc') as () => void;
  }
  collector();
}

/** Consecutive collections without a change. */
const STILL = 3;
/**
 * Turns of the event loop for the finalizers of one collection: each registry has its own turn, in
 * unspecified order.
 */
const TURNS = 20;
const PATIENCE_MS = 180_000;

/**
 * Resolves when finalizers from earlier tests have run: `count` is stable, or equals its minimum
 * `least`. Await it before reading a counter of the process: live tensors, memory, handles. Each
 * round waits until an object that was garbage at the collection has been finalized. Then it gives
 * the other registries their turns, because on a busy machine finalizers take many turns, and
 * tensors count until then.
 */
export async function quiet(
  count: () => number = liveTensors,
  least = Number.NEGATIVE_INFINITY,
): Promise<void> {
  const deadline = Date.now() + PATIENCE_MS;
  for (let still = 0; still < STILL; ) {
    const before = count();
    if (before <= least) return;
    await whenCollected(deadline);
    still = count() === before ? still + 1 : 0;
    if (Date.now() > deadline) throw new Error(`The heap does not come to rest: ${count()} live`);
  }
}

/** Runs a collection, and waits for its finalizers. */
async function whenCollected(deadline: number): Promise<void> {
  let isFinalized = false;
  const registry = new FinalizationRegistry(() => {
    isFinalized = true;
  });
  while (!isFinalized) {
    // A new object in each round, because references to the previous one may exist.
    (() => registry.register({}, null))();
    await setImmediate();
    collectGarbage();
    for (let turn = 0; turn < TURNS && !isFinalized; ++turn) await setImmediate();
    if (Date.now() > deadline)
      throw new Error('No finalizer runs: does a test hold the event loop?');
  }
  for (let turn = 0; turn < TURNS; ++turn) await setImmediate();
}
