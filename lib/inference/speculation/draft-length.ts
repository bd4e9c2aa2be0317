// Adapts the number of proposed tokens of one sequence to their acceptance.

/** Weight of earlier steps in the acceptance, per step. */
const MEMORY = 0.8;
/** Steps without an accepted token before a pause. */
const MISSES = 4;
const SHORTEST_PAUSE = 8;
const LONGEST_PAUSE = 64;

/**
 * Proposes the number of tokens with the most expected tokens per time. A step with n proposals
 * yields (1 - a^(n + 1)) / (1 - a) tokens for the acceptance a. After MISSES steps without an
 * accepted proposal, the sequence pauses. Each pause without a success in between is twice as long.
 * Source: Leviathan et al. 2023, theorem 3.8.
 */
export class DraftLength {
  /**
   * Accepted and rejected proposals of recent steps. Proposals after a rejected one do not count.
   */
  private accepted = 3;
  private rejected = 1;
  private misses = 0;
  private pause = SHORTEST_PAUSE;
  /** Length of the sequence at which the pause ends. */
  private resumes = 0;

  constructor(private readonly max: number) {}

  /**
   * Returns the number of tokens to propose for a sequence of `tokens` tokens; 0 during a pause.
   * `cost` is the time of a proposal relative to a step without proposals.
   */
  lengthFor(tokens: number, cost: number): number {
    if (tokens < this.resumes) return 0;
    const acceptance = this.accepted / (this.accepted + this.rejected);
    let [expected, chance, best] = [1, 1, 1];
    for (let count = 1; count <= this.max; ++count) {
      chance *= acceptance;
      expected += chance;
      const gain = expected / (1 + cost * count);
      if (gain < best) return count - 1;
      best = gain;
    }
    return this.max;
  }

  /** Reports a verified step, after which the sequence has `tokens` tokens. */
  learn(tokens: number, proposed: number, accepted: number): void {
    if (proposed === 0) return;
    this.accepted = MEMORY * this.accepted + accepted;
    this.rejected = MEMORY * this.rejected + (accepted < proposed ? 1 : 0);
    if (accepted > 0) {
      this.misses = 0;
      this.pause = SHORTEST_PAUSE;
      return;
    }
    this.misses++;
    if (this.misses < MISSES) return;
    this.misses = 0;
    this.resumes = tokens + this.pause;
    this.pause = Math.min(LONGEST_PAUSE, 2 * this.pause);
  }
}
