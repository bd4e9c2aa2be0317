// A quiet point: what nobody holds has been collected, so that counters of the whole process move by what a test does.
import { setImmediate } from 'node:timers/promises';
import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';

import { liveTensors } from '../../lib/tensor/index.js';

/** Collects garbage; finalizers run when the event loop turns. */
export function collectGarbage(): void {
  setFlagsFromString('--expose-gc');
  (runInNewContext('gc') as () => void)();
}

/**
 * Resolves when the finalizers of what earlier tests left have run. Await it before reading liveTensors() or a device's
 * memory counters where an `await` lies between two readings: a collection there would free tensors of other tests.
 */
export async function quiet(): Promise<void> {
  for (let still = 0; still < 2; ) {
    const before = liveTensors();
    collectGarbage();
    await setImmediate();
    await setImmediate();
    still = liveTensors() === before ? still + 1 : 0;
  }
}
