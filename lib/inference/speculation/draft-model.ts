// Proposes tokens with a smaller model.
import { required } from '../../runtime/required.js';
import { concat, Tensor } from '../../tensor/index.js';
import type { SamplingResult } from '../sampling.js';
import type { Slice } from '../scheduler.js';
import { Sequence } from '../sequence.js';
import type { Drafted } from '../sequence-sampler.js';
import type { ScoreRow, StepRunner } from '../step-runner.js';

/** Samples the tokens after drafted tokens from scores [R, V] and writes them to `into` [R]. */
type SampleDrafted = (scores: Tensor, rows: readonly Drafted[], into: Tensor) => SamplingResult;

/** A draft model that reads hidden states of the model: an EAGLE-3 head. */
export interface DraftHead {
  /** Keeps the hidden states of the last forward for the next tokens of `sequences`, in order. */
  keep(sequences: readonly Sequence[]): void;
  sleep(): void;
  /** Allocates the cache again. Throws DS_OUT_OF_MEMORY if it no longer fits. */
  wake(): void;
}

/** Sizes of a draft model. */
interface DraftSizes {
  /** Maximum number of tokens of a step. */
  readonly tokens: number;
  /** Vocabulary of the model whose tokens it proposes. */
  readonly vocabSize: number;
}

/** The draft model's copy of a sequence. */
interface Twin {
  readonly sequence: Sequence;
  /**
   * Number of leading tokens that were computed with the model's hidden states, not with the head's
   * own.
   */
  sure: number;
}

/**
 * Runs a draft model. Its cache has the blocks of the model's cache, so a sequence has one block
 * table for both. Each sequence has a twin here, with the drafted tokens. The twin knows which of
 * its tokens are in the cache of the draft model. Owns the runner and the weights.
 *
 * An EAGLE-3 head computes token i + 1 at position i, so its twins lack the first token. It
 * first computes drafted tokens with its own hidden states, then again with the model's.
 */
export class DraftModel {
  private readonly twins = new WeakMap<Sequence, Twin>();

  constructor(
    private readonly runner: StepRunner,
    private readonly sizes: DraftSizes,
    /** Frees the weights. */
    private readonly free: () => void,
    /** Null: a language model of its own. */
    private readonly head: DraftHead | null = null,
  ) {}

  /** Number of leading tokens that the draft model does not compute. */
  private get skipped(): number {
    return this.head ? 1 : 0;
  }

  /**
   * Replaces the proposals of each sequence by as many drafted tokens. The sequences have blocks
   * for them. One step of the draft model per token, and one wait of the host.
   */
  async fill(sequences: readonly Sequence[], draw: SampleDrafted): Promise<void> {
    const sequenceByTwin = new Map(
      sequences.map((sequence) => [this.updateTwin(sequence), sequence]),
    );
    for (let count = 0; ; ++count) {
      const open = [...sequenceByTwin].filter(([twin, { tokens, proposals }]) => {
        const drafted = twin.tokens.length + this.skipped - tokens.length;
        return twin.tokens.length > 0 && drafted === count && count < proposals.length;
      });
      if (open.length === 0) break;
      await this.step(new Map(open), draw);
    }
    for (const [twin, sequence] of sequenceByTwin) {
      sequence.proposals = twin.tokens.slice(sequence.tokens.length - this.skipped);
    }
  }

  /** Samples one token of each twin. Long prompts take several steps. */
  private async step(
    sequences: ReadonlyMap<Sequence, Sequence>,
    draw: SampleDrafted,
  ): Promise<void> {
    let open = [...sequences.keys()];
    while (open.length > 0) {
      let budget = this.sizes.tokens;
      const slices: Slice[] = [];
      for (const twin of open) {
        const count = Math.min(twin.pending, budget);
        if (count === 0) continue;
        slices.push({ sequence: twin, first: twin.computed, count });
        budget -= count;
      }
      const forwarded = this.runner.begin(slices);
      this.head?.keep(forwarded.sequences);
      for (const { sequence, count } of slices) sequence.computed += count;
      open = open.filter((twin) => twin.pending > 0);
      const rowOf = ({ sequence: twin }: ScoreRow): Drafted => {
        const sequence = required(sequences.get(twin));
        const knownTokens = sequence.tokens.length - this.skipped;
        return { sequence, drafted: twin.tokens.slice(knownTokens) };
      };
      const flight = this.runner.sample(forwarded, (scores, rows, into) =>
        draw(fitVocabulary(scores, this.sizes.vocabSize), rows.map(rowOf), into),
      );
      await flight.landed();
      for (const { sequence: twin, sampled } of flight.next()) {
        const token = required(sampled[0]).token;
        // A negative token is an error, which the verification reports.
        if (token >= 0) twin.learn(token);
        else twin.forget();
      }
    }
  }

  /** Returns the twin of a sequence, with its tokens and blocks. */
  private updateTwin(sequence: Sequence): Sequence {
    const { limit, blocks } = sequence;
    const tokens = sequence.tokens.slice(this.skipped);
    const state = this.twins.get(sequence) ?? { sequence: new Sequence([], limit), sure: 0 };
    this.twins.set(sequence, state);
    const { sequence: twin } = state;
    // A preempted sequence has new blocks.
    if (twin.blocks !== blocks) twin.computed = 0;
    twin.blocks = blocks;
    let same = 0;
    while (same < twin.tokens.length && twin.tokens[same] === tokens[same]) same++;
    const max = this.head ? Math.min(same, state.sure) : same;
    twin.computed = Math.min(twin.computed, max);
    state.sure = tokens.length;
    twin.tokens.splice(same, twin.tokens.length, ...tokens.slice(same));
    return twin;
  }

  sleep(): void {
    this.runner.sleep();
    this.head?.sleep();
  }

  wake(): void {
    this.runner.wake();
    this.head?.wake();
  }

  dispose(): void {
    this.runner.dispose();
    this.free();
  }
}

/**
 * Pads or cuts scores to `vocabSize` columns. Heads of one tokenizer may be padded differently;
 * padding has no tokens.
 */
function fitVocabulary(scores: Tensor, vocabSize: number): Tensor {
  const [rows, columns] = [scores.size(0), scores.size(1)];
  if (columns >= vocabSize) return scores.narrow(1, 0, vocabSize);
  const { dtype, device } = scores;
  const padding = Tensor.empty([rows, vocabSize - columns], dtype, device);
  return concat([scores, padding.fill_(Number.NEGATIVE_INFINITY)], 1);
}
