// Adapts the number of proposed tokens of one sequence to their acceptance.

/** Steps without an accepted token before a pause. */
const MISSES = 4;
const SHORTEST_PAUSE = 8;
const LONGEST_PAUSE = 64;

/**
 * The length doubles when a step accepts all proposals. Else it falls to one more than the accepted
 * ones. After MISSES steps without an accepted proposal, the sequence pauses. Each pause without a
 * success in between is twice as long.
 */
export class DraftLength {
  private length: number;
  private misses = 0;
  private pause = SHORTEST_PAUSE;
  /** Length of the sequence at which the pause ends. */
  private resumes = 0;

  /** `most` is the first and the largest length. */
  constructor(private readonly most: number) {
    this.length = most;
  }

  /** Number of tokens to propose for a sequence of `tokens` tokens; 0 during a pause. */
  at(tokens: number): number {
    return tokens < this.resumes ? 0 : this.length;
  }

  /** Reports a verified step, after which the sequence has `tokens` tokens. */
  learn(tokens: number, proposed: number, accepted: number): void {
    if (proposed === 0) return;
    this.length =
      accepted === proposed ? Math.min(this.most, 2 * this.length) : Math.max(1, accepted + 1);
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
