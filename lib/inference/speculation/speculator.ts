// Decides which sequences of a step get proposals, and how many.
import type { Continuation } from '../continuation.js';
import type { Sequence } from '../sequence.js';
import { DraftLength } from './draft-length.js';
import { type LookupSizes, PromptLookup } from './prompt-lookup.js';

/** Settings of speculation: the section `speculative` of the configuration. */
export interface SpeculationSettings {
  /** Maximum number of proposals of a sequence. */
  readonly max: number;
  readonly lookup: LookupSizes;
  /** Maximum number of running sequences with proposals. */
  readonly maxSequences: number;
  /** Set for a draft model; null: proposals come from lookups. */
  readonly draft: DraftCost | null;
  /** Tokens of a step that double its time, by computation, against a step of few tokens. */
  readonly doubling: number;
}

/** Cost and reach of a draft model. */
export interface DraftCost {
  /** Time of a token of the draft model, relative to a step of the model. */
  readonly step: number;
  /** Maximum number of tokens of a sequence. */
  readonly reach: number;
}

/** Counters of speculation. */
export interface SpeculationCounts {
  /** Proposed tokens that a step verified. */
  proposedTokens: number;
  /** Proposed tokens that were accepted. */
  acceptedTokens: number;
}

/** State of a sequence. */
interface DraftState {
  readonly lookup: PromptLookup;
  readonly length: DraftLength;
}

/**
 * Proposes tokens for the next step. Sampling verifies them: it draws the token of each position
 * with the noise of that position, as a step without proposals does. The step keeps proposals while
 * they equal the drawn tokens. So the result equals generation without speculation.
 *
 * A draw equals a proposal with the probability of that token. For proposals without a distribution
 * this is rejection sampling. Source: Leviathan et al. 2023.
 */
export class Speculator {
  private readonly drafts = new WeakMap<Sequence, DraftState>();
  private proposed = 0;
  private accepted = 0;

  constructor(
    private readonly settings: SpeculationSettings,
    /** Returns the continuation of a sequence in progress. */
    private readonly continuationOf: (sequence: Sequence) => Continuation | undefined,
  ) {}

  counts(): SpeculationCounts {
    return { proposedTokens: this.proposed, acceptedTokens: this.accepted };
  }

  /**
   * True if one of the sequences probably gets proposals once the host has all its tokens. Then the
   * next step waits for these tokens.
   */
  expects(sequences: readonly Sequence[]): boolean {
    if (sequences.length > this.settings.maxSequences) return false;
    const cost = this.costOf(sequences.length);
    return sequences.some((sequence) => this.proposalsFor(sequence, 1, cost).length > 0);
  }

  /** Sets the proposals of sequences for which the host has all tokens. */
  propose(sequences: readonly Sequence[]): void {
    const isBusy = sequences.length > this.settings.maxSequences;
    const cost = this.costOf(sequences.length);
    for (const sequence of sequences) {
      const isFree = !isBusy && !sequence.isAhead;
      // A step samples one token after the last proposal.
      const room = sequence.limit - sequence.tokens.length - 1;
      sequence.proposals = isFree ? this.proposalsFor(sequence, room, cost) : [];
    }
  }

  private proposalsFor(sequence: Sequence, room: number, cost: number): number[] {
    const { lookup, length } = this.getState(sequence);
    const { draft } = this.settings;
    const knownTokens = sequence.tokens.length;
    const continuation = this.continuationOf(sequence);
    if (!continuation?.maySpeculate) return [];
    const max = Math.min(room, length.lengthFor(knownTokens, cost));
    // If the format allows only one text, this text is the proposal (jump-forward decoding).
    const forced = max > 0 ? Array.from(continuation.forcedTokens()).slice(0, max) : [];
    if (forced.length > 0) return forced;
    if (!draft || continuation.matcher) return lookup.propose(max);
    // The draft model fills them in later.
    return new Array(Math.max(0, Math.min(max, draft.reach - knownTokens))).fill(0);
  }

  /**
   * Time of a proposal in each of `running` sequences, relative to their step without proposals.
   */
  private costOf(running: number): number {
    const { doubling, draft } = this.settings;
    return running / (doubling + running) + (draft?.step ?? 0);
  }

  /** Reports the verified proposals of a sequence. */
  learn(sequence: Sequence, proposed: number, accepted: number): void {
    if (proposed === 0) return;
    this.proposed += proposed;
    this.accepted += accepted;
    this.getState(sequence).length.learn(sequence.tokens.length, proposed, accepted);
  }

  private getState(sequence: Sequence): DraftState {
    const { max, lookup } = this.settings;
    const state = this.drafts.get(sequence) ?? {
      lookup: new PromptLookup(sequence.tokens, lookup),
      length: new DraftLength(max),
    };
    this.drafts.set(sequence, state);
    return state;
  }
}
