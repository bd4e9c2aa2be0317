// Samples the tokens of running sequences: assigns sampler slots, and handles proposals.
import type { Matcher } from '../runtime/grammar.js';
import { required } from '../runtime/required.js';
import type { Tensor } from '../tensor/index.js';
import type { Continuation } from './continuation.js';
import type { Sampler, SamplingResult } from './sampling.js';
import type { Sequence } from './sequence.js';
import type { ScoreRow } from './step-runner.js';

/** Assigns the sampler's slots to sequences. Owns the sampler. */
export class SequenceSampler {
  private readonly freeSlots: number[];
  /** The sequences with a slot. */
  private readonly holders = new Map<Continuation, Sequence>();

  constructor(
    private readonly sampler: Sampler,
    /** Returns the continuation of a sequence in progress. */
    private readonly continuationOf: (sequence: Sequence) => Continuation | undefined,
  ) {
    this.freeSlots = Array.from({ length: sampler.slots }, (_, i) => i);
  }

  /** Samples the tokens of rows of a step. Each sequence has a row, and a row per proposal. */
  sample(scores: Tensor, rows: readonly ScoreRow[], into: Tensor): SamplingResult {
    const { sampler } = this;
    const slots = this.slotsOf(rows.map(({ sequence }) => sequence));
    for (const [i, { sequence, ahead }] of rows.entries()) {
      const slot = required(slots[i]);
      const isBehind = sampler.positionOf(slot) !== sequence.length;
      const { tokens, promptLength, proposals } = sequence;
      if (ahead > 0 || (proposals.length === 0 && !isBehind)) continue;
      sampler.follow(slot, tokens, promptLength, proposals);
    }
    const ahead = rows.map((row) => row.ahead);
    return sampler.sample(scores, slots, into, ahead);
  }

  /**
   * Samples the token after `drafted` tokens of each sequence, from the scores of another model. It
   * uses the noise of this position, as the verification does, so equal scores give equal tokens.
   */
  draft(scores: Tensor, rows: readonly Drafted[], into: Tensor): SamplingResult {
    const slots = this.slotsOf(rows.map(({ sequence }) => sequence));
    for (const [i, { sequence, drafted }] of rows.entries()) {
      const { tokens, promptLength } = sequence;
      this.sampler.follow(required(slots[i]), tokens, promptLength, drafted);
    }
    const ahead = rows.map(({ drafted }) => drafted.length);
    return this.sampler.sample(scores, slots, into, ahead);
  }

  /** Fills the masks of the next tokens on native threads. Rejects with DS_LIMIT. */
  fillMasks(sequences: readonly Sequence[]): Promise<void> {
    const slots = this.slotsOf(sequences);
    const matcherOf = (sequence: Sequence): Matcher =>
      required(this.continuationOf(sequence)?.matcher);
    return this.sampler.fillMasks(
      sequences.map((sequence, i) => {
        const { proposals } = sequence;
        return { slot: required(slots[i]), matcher: matcherOf(sequence), proposals };
      }),
    );
  }

  /** Frees the slot of a continuation. */
  leave(continuation: Continuation): void {
    const { slot } = continuation;
    if (slot === null) return;
    this.sampler.leave(slot);
    this.freeSlots.push(slot);
    this.holders.delete(continuation);
    continuation.slot = null;
  }

  dispose(): void {
    this.sampler.dispose();
  }

  /** Returns the sampler slots. A preempted sequence keeps its slot while slots are free. */
  private slotsOf(sequences: readonly Sequence[]): number[] {
    return sequences.map((sequence) => {
      const continuation = required(this.continuationOf(sequence));
      if (continuation.slot === null) {
        const { tokens, promptLength } = sequence;
        const slot = this.freeSlot();
        const ends = [...continuation.ends];
        const isMasked = continuation.matcher !== null;
        const generated = tokens.slice(promptLength);
        const state = { ends, isMasked, generated };
        this.sampler.enter(slot, tokens.slice(0, promptLength), continuation.sampling, state);
        continuation.slot = slot;
        this.holders.set(continuation, sequence);
      }
      return continuation.slot;
    });
  }

  /** Returns a free slot. If there is none, a preempted sequence loses its slot. */
  private freeSlot(): number {
    if (this.freeSlots.length === 0) {
      const [preempted] = [...this.holders].find(([, { blocks }]) => blocks.length === 0) ?? [];
      this.leave(required(preempted));
    }
    return required(this.freeSlots.pop());
  }
}

/** A sequence, and tokens after it that a draft model has sampled. */
export interface Drafted {
  readonly sequence: Sequence;
  readonly drafted: readonly number[];
}
