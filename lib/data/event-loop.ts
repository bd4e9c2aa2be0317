// A turn of the event loop between two batches, for signals, timers and running saves.

/**
 * Resolves after one turn of the event loop, in a few microseconds. Awaiting resolved promises
 * gives the loop no turn: an iteration over ready batches would block all listeners and timers.
 */
export function turn(): Promise<void> {
  return new Promise((resolve) => setImmediate(resolve));
}
