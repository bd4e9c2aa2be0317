// Ranks that share out the tokens of each sample from the first layer to the loss: what a model
// does with its part. Source: Jacobs et al. 2023 (DeepSpeed-Ulysses).
import type { ProcessGroup } from '../comm/index.js';
import { DsError } from '../errors.js';
import type { Module } from '../nn/module.js';
import {
  isGradEnabled,
  noGrad,
  sharingTokens,
  type Tensor,
  type TokenShare,
} from '../tensor/index.js';
import { gatherShared, sumOverGroup } from './collectives.js';
import type { SharedDim } from './exchanges.js';
import { Ulysses } from './ulysses.js';

/** A model that can compute with some of the tokens of each sample. */
export interface SequenceParallel {
  /**
   * From now on, calls with all tokens compute with this rank's; null ends that. Throws DS_ARGUMENT
   * where it cannot.
   */
  shareSequence(ranks: SequenceRanks | null): void;
}

/** Tokens are the second dim: [B, T], or [B, T, ..]. */
const TOKENS = 1;

/** The ranks between which a model shares tokens out; all call it alike, with whole samples. */
export class SequenceRanks {
  private readonly heads: Ulysses;

  constructor(
    /** Those ranks, in the order of their tokens. */
    readonly group: ProcessGroup,
  ) {
    this.heads = new Ulysses(group);
  }

  /**
   * This rank's part of the samples of one call by `model`; null for a call without gradients in
   * evaluation mode whose tokens do not come out even: it has all of them on every rank. Throws
   * DS_SHAPE where others do not.
   */
  partOf(model: Module, tokens: Tensor): SequencePart | null {
    const { group } = this;
    const whole = tokens.size(TOKENS);
    const count = whole / group.size;
    if (Number.isInteger(count) && count > 0) {
      return new SequencePart(group, {
        first: group.rank * count,
        count,
        whole,
        heads: this.heads,
      });
    }
    if (!model.training && !isGradEnabled()) return null;
    throw new DsError({
      code: 'DS_SHAPE',
      op: 'sequence_parallel_size',
      expected: `tokens [B, T] with T a multiple of ${group.size}, the ranks that share them`,
      got: `[${tokens.shape.join(', ')}]`,
      hint: 'Pad the rows, their targets with the ignored index.',
    });
  }
}

/** Tokens `share` of each sample, those of one rank. */
export class SequencePart {
  constructor(
    private readonly group: ProcessGroup,
    /** Which tokens they are. */
    readonly share: TokenShare,
  ) {}

  /** Those of `x` [B, T, ..], which has all. */
  of(x: Tensor): Tensor {
    return noGrad(() => x.narrow(TOKENS, this.share.first, this.share.count).contiguous());
  }

  /** Runs `body`, whose attention sees all tokens, and whose dropout knows which these are. */
  run<T>(body: () => T): T {
    return sharingTokens(this.share, body);
  }

  /** All ranks' `x` [B, T / n, ..] as [B, T, ..], of which every rank then makes the same. */
  whole(x: Tensor): Tensor {
    const { group, share } = this;
    const shared: SharedDim = { group, dim: TOKENS, sizes: group.ranks.map(() => share.count) };
    return gatherShared(x, shared);
  }

  /** The sum of the ranks' losses, each of which has been divided by the targets of all. */
  sum(loss: Tensor): Tensor {
    return sumOverGroup(loss, this.group);
  }

  /** Adds up whole numbers of the ranks in place, not differentiable. */
  total(counts: Tensor): void {
    this.group.allReduce(counts, { purpose: 'counted targets' }).wait();
  }
}
