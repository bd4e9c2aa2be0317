// Waits for device work without blocking the event loop.

/**
 * Calls `done` at once and then every few milliseconds. Resolves when `done` returns true; rejects
 * if it throws.
 */
export async function poll(done: () => boolean): Promise<void> {
  for (let wait = 0; !done(); wait = Math.min(wait + 1, 5)) {
    await new Promise<void>((resolve) =>
      wait === 0 ? setImmediate(resolve) : setTimeout(resolve, wait),
    );
  }
}
