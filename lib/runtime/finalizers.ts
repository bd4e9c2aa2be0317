// Creates the library's finalization registries, which work until the process ends.
import { readFileSync } from 'node:fs';

/**
 * V8 (11.3 of Node 20) posts one task for all registries with something to finalize, and posts no
 * other task until this task has found a registry. If the only such registry was garbage-collected
 * in the meantime, no finalizer ever runs again in the process. This registry exists until the
 * process ends and always has an object that the next full collection finalizes. So the task always
 * finds a registry.
 */
const permanent = new FinalizationRegistry<null>(registerGarbage);

function registerGarbage(): void {
  permanent.register({}, null);
}

// A separate realm, as jest has for each file, ends before the process: its registry would be
// garbage-collected itself. Node's functions belong to the process's realm.
if (readFileSync instanceof Function) registerGarbage();

/** Calls `finalize` with the registered value after an object has been garbage-collected. */
export function finalizers<T>(finalize: (reported: T) => void): FinalizationRegistry<T> {
  return new FinalizationRegistry<T>(finalize);
}
