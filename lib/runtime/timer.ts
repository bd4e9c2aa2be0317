// How long a timer may run.

/** Node's longest timer, 24.8 days: beyond it one ends at once. */
const LONGEST_MS = 2 ** 31 - 1;

/** So many seconds in milliseconds, for a timer. */
export const timerMs = (seconds: number): number => Math.min(seconds * 1000, LONGEST_MS);
