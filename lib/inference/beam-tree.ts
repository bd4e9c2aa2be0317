// The bookkeeping of a beam search, without a model: which sequences go on, which are finished, and
// when it is over.

/** How a beam search chooses. */
export interface BeamRules {
  /** Texts that go on side by side. */
  readonly numBeams: number;
  /** The sum of a text's logprobs is divided by its length to this power. */
  readonly lengthPenalty: number;
  /** See BeamOptions. */
  readonly earlyStopping: boolean | 'never';
  /** Tokens that end a text. */
  readonly ends: ReadonlySet<number>;
  readonly maxNewTokens: number;
}

/** A text that a search has found. */
export interface Beam {
  /** What follows the prompt, with the token that ended it where one did. */
  readonly tokens: readonly number[];
  /** The sum of its logprobs over its length to the power of the length penalty. */
  readonly score: number;
}

/** A token that may come next, the likeliest first. */
export interface Candidate {
  /** The text that it continues. */
  readonly beam: number;
  readonly token: number;
  /** The sum of logprobs of the text with it. */
  readonly total: number;
}

/** What transformers adds to what must not be chosen; scores are f32 as there. */
const NEVER = -1e9;
const { fround } = Math;

interface Finished extends Beam {
  readonly isFinished: boolean;
}

/** Source: transformers' _beam_search, whose order of comparisons it keeps. */
export class BeamTree {
  /** Texts that go on, and the sum of their logprobs. */
  running: readonly { readonly tokens: readonly number[]; readonly total: number }[];
  private finished: Finished[] = [];
  private canImprove = true;
  private length = 0;

  constructor(private readonly rules: BeamRules) {
    const { numBeams } = rules;
    // All begin alike: only the first one's continuations are looked at.
    this.running = Array.from({ length: numBeams }, (_, i) => ({
      tokens: [],
      total: i === 0 ? 0 : NEVER,
    }));
    const none = { tokens: [], score: NEVER, isFinished: false };
    this.finished = Array.from({ length: numBeams }, () => none);
  }

  /** Candidates that advance() needs: enough to go on where all the likeliest ones end. */
  get breadth(): number {
    const { numBeams, ends } = this.rules;
    return Math.max(2, 1 + ends.size) * numBeams;
  }

  /**
   * Takes the likeliest continuations, `breadth` of them where there are as many. Returns which
   * text each one that goes on continues; null when the search is over.
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
    const onwards = best(
      sequences.map((one) => ({ ...one, total: fround(one.total + (one.hasEnded ? NEVER : 0)) })),
      ({ total }) => total,
      numBeams,
    );
    this.running = onwards;
    this.canImprove &&= this.mayImprove();
    const isFull = this.rules.earlyStopping === true && this.isFull;
    const isOver = !this.canImprove || isFull || sequences.every(({ hasEnded }) => hasEnded);
    return isOver ? null : onwards.map(({ beam }) => beam);
  }

  /** The `count` best sequences, the best first. */
  found(count: number): Beam[] {
    return this.finished.slice(0, count).map(({ tokens, score }) => ({ tokens, score }));
  }

  private get isFull(): boolean {
    return this.finished.every(({ isFinished }) => isFinished);
  }

  /** Puts what has ended among the best; only one of the likeliest `numBeams` may. */
  private finish(
    sequences: readonly { tokens: readonly number[]; total: number; hasEnded: boolean }[],
  ): void {
    const { numBeams, earlyStopping } = this.rules;
    const isClosed =
      (earlyStopping === true && this.isFull ? NEVER : 0) + (this.canImprove ? 0 : NEVER);
    const added = sequences.map(({ tokens, total, hasEnded }, rank) => {
      const isFinished = hasEnded && rank < numBeams;
      const score = fround(this.scored(total, this.length) + isClosed + (isFinished ? 0 : NEVER));
      return { tokens, score, isFinished };
    });
    this.finished = best([...this.finished, ...added], ({ score }) => score, numBeams);
  }

  private scored(total: number, length: number): number {
    return fround(total / fround(length ** this.rules.lengthPenalty));
  }

  /** Whether the best text that goes on may yet beat the worst one that is finished. */
  private mayImprove(): boolean {
    const { earlyStopping, lengthPenalty, maxNewTokens } = this.rules;
    const length = earlyStopping === 'never' && lengthPenalty > 0 ? maxNewTokens : this.length;
    const hoped = this.scored(this.running[0]?.total ?? NEVER, length);
    const worst = Math.min(...this.finished.map(({ score }) => score));
    return this.finished.some(({ isFinished }) => hoped > (isFinished ? worst : NEVER));
  }
}

/** The `count` items with the largest values, the largest first; of equal ones the first. */
function best<T>(items: readonly T[], ranked: (item: T) => number, count: number): T[] {
  return items.toSorted((a, b) => ranked(b) - ranked(a)).slice(0, count);
}
