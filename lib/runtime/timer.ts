// How long a timer may run.

/** Node's longest timer, 24.8 days: a longer one fires at once. */
const LONGEST_MS = 2 ** 31 - 1;

/** So many milliseconds, for a timer. */
export const boundedMs = (milliseconds: number): number => Math.min(milliseconds, LONGEST_MS);

/** Converts seconds to milliseconds for a timer. */
export const timerMs = (seconds: number): number => boundedMs(seconds * 1000);
