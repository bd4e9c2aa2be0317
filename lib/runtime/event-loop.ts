// Waits for the event loop during long work, so that signals, timers and running saves proceed.

/**
 * Resolves after one turn of the event loop, in a few microseconds. Awaiting resolved promises
 * gives the loop no turn, so an iteration over ready batches would block all listeners and timers.
 */
export function waitForEventLoop(): Promise<void> {
  return new Promise((resolve) => setImmediate(resolve));
}
