// State of a beam search, without the model: running and finished sequences, and the stop rule.

/** Rules of a beam search. */
export interface BeamRules {
  /** Number of running sequences. */
  readonly numBeams: number;
  /** Exponent of the length that divides the sum of the logprobs. */
  readonly lengthPenalty: number;
  /** See BeamOptions. */
  readonly earlyStopping: boolean | 'never';
  /** End tokens. */
  readonly ends: ReadonlySet<number>;
  readonly maxNewTokens: number;
}

/** A result of a beam search. */
export interface Beam {
  /** The sampled tokens without the prompt, including the end token. */
  readonly tokens: readonly number[];
  /** The sum of the logprobs divided by the length to the power of `lengthPenalty`. */
  readonly score: number;
}

/** A possible next token of a running sequence. */
export interface Candidate {
  /** Index of the running sequence. */
  readonly beam: number;
  readonly token: number;
  /** The sum of the logprobs, including this token. */
  readonly total: number;
}

/** transformers adds this value to excluded scores. Scores are f32, as in transformers. */
const NEVER = -1e9;
const { fround } = Math;

/** A candidate for the result. Unfinished candidates only fill up the list. */
interface FinishedBeam extends Beam {
  readonly isFinished: boolean;
}

/**
 * The state of a beam search. Source: transformers' _beam_search, with its order of comparisons.
 */
export class BeamTree {
  /** The running sequences with the sums of their logprobs. */
  running: readonly { readonly tokens: readonly number[]; readonly total: number }[];
  private finished: FinishedBeam[] = [];
  private canImprove = true;
  private length = 0;

  constructor(private readonly rules: BeamRules) {
    const { numBeams } = rules;
    // All sequences start equal, so only the continuations of the first one count.
    this.running = Array.from({ length: numBeams }, (_, i) => ({
      tokens: [],
      total: i === 0 ? 0 : NEVER,
    }));
    const none = { tokens: [], score: NEVER, isFinished: false };
    this.finished = Array.from({ length: numBeams }, () => none);
  }

  /**
   * Number of candidates that advance() needs. If some end in an end token, `numBeams` others
   * remain.
   */
  get breadth(): number {
    const { numBeams, ends } = this.rules;
    return Math.max(2, 1 + ends.size) * numBeams;
  }

  /**
   * Takes the `breadth` likeliest continuations, or all if there are fewer; the likeliest first.
   * Returns the index of the parent of each running sequence, or null at the end of the search.
   */
  advance(candidates: readonly Candidate[]): number[] | null {
    const { numBeams, ends, maxNewTokens } = this.rules;
    this.length++;
    const isLast = this.length >= maxNewTokens;
    const sequences = candidates.map(({ beam, token, total }) => ({
      beam,
      total,
      tokens: [...(this.running[beam]?.tokens ?? []), token],
      hasEnded: isLast || ends.has(token),
    }));
    this.finish(sequences);
    const onwards = selectBest(
      sequences.map((sequence) => ({
        ...sequence,
        total: fround(sequence.total + (sequence.hasEnded ? NEVER : 0)),
      })),
      ({ total }) => total,
      numBeams,
    );
    this.running = onwards;
    this.canImprove &&= this.mayImprove();
    const isFull = this.rules.earlyStopping === true && this.isFull;
    const isOver = !this.canImprove || isFull || sequences.every(({ hasEnded }) => hasEnded);
    return isOver ? null : onwards.map(({ beam }) => beam);
  }

  /** Returns the `count` best sequences, the best first. */
  bestBeams(count: number): Beam[] {
    return this.finished.slice(0, count).map(({ tokens, score }) => ({ tokens, score }));
  }

  private get isFull(): boolean {
    return this.finished.every(({ isFinished }) => isFinished);
  }

  /**
   * Adds finished sequences to the best sequences. A sequence must rank among the first `numBeams`.
   */
  private finish(
    sequences: readonly { tokens: readonly number[]; total: number; hasEnded: boolean }[],
  ): void {
    const { numBeams, earlyStopping } = this.rules;
    const isClosed =
      (earlyStopping === true && this.isFull ? NEVER : 0) + (this.canImprove ? 0 : NEVER);
    const added = sequences.map(({ tokens, total, hasEnded }, rank) => {
      const isFinished = hasEnded && rank < numBeams;
      const score = fround(this.scoreOf(total, this.length) + isClosed + (isFinished ? 0 : NEVER));
      return { tokens, score, isFinished };
    });
    this.finished = selectBest([...this.finished, ...added], ({ score }) => score, numBeams);
  }

  private scoreOf(total: number, length: number): number {
    return fround(total / fround(length ** this.rules.lengthPenalty));
  }

  /** Returns true if the best running sequence can still beat the worst finished one. */
  private mayImprove(): boolean {
    const { earlyStopping, lengthPenalty, maxNewTokens } = this.rules;
    const length = earlyStopping === 'never' && lengthPenalty > 0 ? maxNewTokens : this.length;
    const bestPossible = this.scoreOf(this.running[0]?.total ?? NEVER, length);
    const worst = Math.min(...this.finished.map(({ score }) => score));
    return this.finished.some(({ isFinished }) => bestPossible > (isFinished ? worst : NEVER));
  }
}

/** Returns the `count` items with the largest values in descending order. The sort is stable. */
function selectBest<T>(items: readonly T[], score: (item: T) => number, count: number): T[] {
  return items.toSorted((a, b) => score(b) - score(a)).slice(0, count);
}
