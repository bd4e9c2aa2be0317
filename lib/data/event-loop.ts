// A turn of the event loop between two batches: signals, timers and saves under way are served in
// it.

/**
 * Resolves after one turn: promises alone never let one happen, so a loop over batches that are
 * there already would keep every listener and timer of the program waiting until its end. It takes
 * a few microseconds.
 */
export function turn(): Promise<void> {
  return new Promise((resolve) => setImmediate(resolve));
}
