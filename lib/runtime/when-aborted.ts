// One abort listener per signal for all waiting code: Node warns above ten listeners, and programs
// add their own.

const waiting = new WeakMap<EventTarget, Set<() => void>>();

/** Calls `body` when `signal` is aborted, until the returned function is called. */
export function whenAborted(signal: AbortSignal, body: () => void): () => void {
  const bodies = waiting.get(signal) ?? new Set();
  waiting.set(signal, bodies.add(body));
  signal.addEventListener('abort', report); // The same function is added once.
  return () => {
    bodies.delete(body);
    if (bodies.size === 0) signal.removeEventListener('abort', report);
  };
}

function report({ currentTarget }: Event): void {
  // Node calls a listener that an earlier listener has removed, without a target.
  const bodies = currentTarget && waiting.get(currentTarget);
  for (const body of bodies ?? []) body();
}
