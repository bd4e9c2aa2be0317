// Finds the error of a loader with a stalled worker, with a limit that exceeds the start time of a
// thread on a busy machine.

/** Values of workerTimeoutMs in milliseconds, tried in turn. */
const LIMITS = [1500, 6000, 24_000, 96_000] as const;

/**
 * The error of `run`, and its limit: the first limit under which the worker has reached `place`.
 */
export async function stalledAt(
  place: string,
  run: (workerTimeoutMs: number) => Promise<unknown>,
): Promise<{ error: Error; limit: number }> {
  let last: { error: Error; limit: number } | null = null;
  for (const limit of LIMITS) {
    const error = await run(limit).then(
      () => new Error('nothing was thrown'),
      (thrown: Error) => thrown,
    );
    last = { error, limit };
    if (!/got no batch; the worker is /.test(error.message) || error.message.includes(place)) break;
  }
  return last as { error: Error; limit: number };
}
