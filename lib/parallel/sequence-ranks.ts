// Sequence parallelism: ranks split the tokens of each sample from the first layer to the loss.
// Source: Jacobs et al. 2023 (DeepSpeed-Ulysses).
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
   * From now on, calls with all tokens compute only this rank's part; null ends that. Throws
   * DS_ARGUMENT if the model does not support it.
   */
  shareSequence(ranks: SequenceRanks | null): void;
}

/** Tokens are the second dim: [B, T], or [B, T, ..]. */
const TOKENS = 1;

/** The ranks that split a model's tokens; all of them make the same calls, with whole samples. */
export class SequenceRanks {
  private readonly heads: Ulysses;

  /** `group`: the ranks of one sample, in the order of their tokens. */
  constructor(
    /** The ranks in the order of their tokens. */
    readonly group: ProcessGroup,
  ) {
    this.heads = new Ulysses(group);
  }

  /**
   * Returns this rank's part of the samples of one call by `model`. If the tokens do not divide
   * evenly, returns null in evaluation without gradients (every rank then has all tokens), else
   * throws DS_SHAPE.
   */
  partOf(model: Module, tokens: Tensor): SequencePart | null {
    const { group } = this;
    const totalTokens = tokens.size(TOKENS);
    const count = totalTokens / group.size;
    if (Number.isInteger(count) && count > 0) {
      return new SequencePart(group, {
        first: group.rank * count,
        count,
        whole: totalTokens,
        heads: this.heads,
      });
    }
    if (!model.training && !isGradEnabled()) return null;
    throw new DsError({
      code: 'DS_SHAPE',
      op: 'sequence_parallel_size',
      expected: `tokens [B, T] with T a multiple of ${group.size}, the ranks that share them`,
      got: `[${tokens.shape.join(', ')}]`,
      hint: 'Pad the rows, and their targets with the ignored index.',
    });
  }
}

/** The tokens `share` of each sample, which one rank holds. */
export class SequencePart {
  /** `share`: the tokens of this rank in `group`. */
  constructor(
    private readonly group: ProcessGroup,
    /** The tokens of this part. */
    readonly share: TokenShare,
  ) {}

  /** Returns this part of `x` [B, T, ..], which has all tokens. */
  of(x: Tensor): Tensor {
    return noGrad(() => x.narrow(TOKENS, this.share.first, this.share.count).contiguous());
  }

  /** Runs `body`. Its attention sees all tokens, and its dropout uses the global token indices. */
  run<T>(body: () => T): T {
    return sharingTokens(this.share, body);
  }

  /**
   * Gathers the ranks' `x` [B, T / n, ..] to [B, T, ..]. Later work must be the same on every rank.
   */
  whole(x: Tensor): Tensor {
    const { group, share } = this;
    const shared: SharedDim = { group, dim: TOKENS, sizes: group.ranks.map(() => share.count) };
    return gatherShared(x, shared);
  }

  /** Sums the ranks' losses. Each loss is already divided by the number of targets of all ranks. */
  sum(loss: Tensor): Tensor {
    return sumOverGroup(loss, this.group);
  }

  /** Sums integers of the ranks in place; not differentiable. */
  total(counts: Tensor): void {
    this.group.allReduce(counts, { purpose: 'counted targets' }).wait();
  }
}
