// A worker that stalls, as a loader says it: with a limit that the thread's start on a busy machine
// stays below.

/** Milliseconds of workerTimeoutMs, tried in turn. */
const LIMITS = [1500, 6000, 24_000, 96_000] as const;

/**
 * What `run` rejects with, and under which limit: the first at which the worker has come to
 * `place`.
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
    if (!/got nothing; it is /.test(error.message) || error.message.includes(place)) break;
  }
  return last as { error: Error; limit: number };
}
