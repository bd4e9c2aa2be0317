// How often a destructive test repeats itself: a few times in CI, as often as its claim needs under
// scripts/stress.

/** `full` under scripts/stress, else `few`. */
export function times(few: number, full: number): number {
  return process.env.DS_STRESS === '1' ? full : few;
}

/**
 * The limit in milliseconds of a test that makes `count` rounds: that of every test, and `perRound`
 * for each.
 */
export function limit(count: number, perRound: number): number {
  return 600_000 + count * perRound;
}
