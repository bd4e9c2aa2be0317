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
interface DraftCopy {
  readonly sequence: Sequence;
  /**
   * Number of leading tokens that were computed with the model's hidden states, not with the head's
   * own.
   */
  fromModel: number;
}

/**
 * Runs a draft model. Its cache has the blocks of the model's cache, so a sequence has one block
 * table for both. Each sequence has a copy here, with the drafted tokens. The copy knows which of
 * its tokens are in the cache of the draft model. Owns the runner and the weights.
 *
 * An EAGLE-3 head computes token i + 1 at position i, so its copies lack the first token. It
 * first computes drafted tokens with its own hidden states, then again with the model's.
 */
export class DraftModel {
  private readonly copies = new WeakMap<Sequence, DraftCopy>();

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
    const sequenceByCopy = new Map(
      sequences.map((sequence) => [this.updateCopy(sequence), sequence]),
    );
    for (let count = 0; ; ++count) {
      const open = [...sequenceByCopy].filter(([copy, { tokens, proposals }]) => {
        const drafted = copy.tokens.length + this.skipped - tokens.length;
        return copy.tokens.length > 0 && drafted === count && count < proposals.length;
      });
      if (open.length === 0) break;
      await this.step(new Map(open), draw);
    }
    for (const [copy, sequence] of sequenceByCopy) {
      sequence.proposals = copy.tokens.slice(sequence.tokens.length - this.skipped);
    }
  }

  /** Samples one token of each copy. Long prompts take several steps. */
  private async step(
    sequences: ReadonlyMap<Sequence, Sequence>,
    draw: SampleDrafted,
  ): Promise<void> {
    let open = [...sequences.keys()];
    while (open.length > 0) {
      let budget = this.sizes.tokens;
      const slices: Slice[] = [];
      for (const copy of open) {
        const count = Math.min(copy.pending, budget);
        if (count === 0) continue;
        slices.push({ sequence: copy, first: copy.computed, count });
        budget -= count;
      }
      const forwarded = this.runner.begin(slices);
      this.head?.keep(forwarded.sequences);
      for (const { sequence, count } of slices) sequence.computed += count;
      open = open.filter((copy) => copy.pending > 0);
      const rowOf = ({ sequence: copy }: ScoreRow): Drafted => {
        const sequence = required(sequences.get(copy));
        const knownTokens = sequence.tokens.length - this.skipped;
        return { sequence, drafted: copy.tokens.slice(knownTokens) };
      };
      const flight = this.runner.sample(forwarded, (scores, rows, into) =>
        draw(fitVocabulary(scores, this.sizes.vocabSize), rows.map(rowOf), into),
      );
      await flight.landed();
      for (const { sequence: copy, sampled } of flight.next()) {
        const token = required(sampled[0]).token;
        // A negative token is an error, which the verification reports.
        if (token >= 0) copy.learn(token);
        else copy.forget();
      }
    }
  }

  /** Returns the copy of a sequence, with its tokens and blocks. */
  private updateCopy(sequence: Sequence): Sequence {
    const { limit, blocks } = sequence;
    const tokens = sequence.tokens.slice(this.skipped);
    const state = this.copies.get(sequence) ?? { sequence: new Sequence([], limit), fromModel: 0 };
    this.copies.set(sequence, state);
    const { sequence: copy } = state;
    // A preempted sequence has new blocks.
    if (copy.blocks !== blocks) copy.computed = 0;
    copy.blocks = blocks;
    let same = 0;
    while (same < copy.tokens.length && copy.tokens[same] === tokens[same]) same++;
    const max = this.head ? Math.min(same, state.fromModel) : same;
    copy.computed = Math.min(copy.computed, max);
    state.fromModel = tokens.length;
    copy.tokens.splice(same, copy.tokens.length, ...tokens.slice(same));
    return copy;
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
