// Durations that Node's timers accept.

/** Node's longest timer, 24.8 days: a longer timer fires at once. */
const LONGEST_MS = 2 ** 31 - 1;

/** Returns `milliseconds`, at most Node's longest timer. */
export const boundedMs = (milliseconds: number): number => Math.min(milliseconds, LONGEST_MS);

/** Converts seconds to milliseconds for a timer. */
export const timerMs = (seconds: number): number => boundedMs(seconds * 1000);
