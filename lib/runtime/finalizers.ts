// Finalizers that go on as long as the process does: the library's registries are made here.
import { readFileSync } from 'node:fs';

/**
 * V8 posts one task for all registries with something to finalize, and no other before that one has
 * found a registry: where the only one has been collected itself in the meantime, no finalizer ever
 * runs again in the process (V8 11.3 of Node 20). This one stays, and has an object that every
 * collection of the whole heap finds, so that the task never comes for nothing, whoever's registry
 * it was posted for.
 */
const everlasting = new FinalizationRegistry<null>(leaveOne);

function leaveOne(): void {
  everlasting.register({}, null);
}

// A realm of its own, as jest has for each file, ends before the process: in it this registry would
// itself be the one that is collected. Node's functions are of the process's realm.
if (readFileSync instanceof Function) leaveOne();

/** Calls `finalize` with what register() was told of an object once that has been collected. */
export function finalizers<T>(finalize: (reported: T) => void): FinalizationRegistry<T> {
  return new FinalizationRegistry<T>(finalize);
}
