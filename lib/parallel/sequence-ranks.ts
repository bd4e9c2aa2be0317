// Ulysses sequence parallelism: the ranks split the tokens of each sample, from the first layer to
// the loss. Source: Jacobs et al. 2023 (DeepSpeed-Ulysses).
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

/** A model that can compute with only some of the tokens of each sample. */
export interface SequenceParallel {
  /**
   * Makes later calls, which receive all tokens, compute only this rank's part. Null makes them
   * compute all tokens again. Throws DS_ARGUMENT if the model does not support it.
   */
  shareSequence(ranks: SequenceRanks | null): void;
}

/** The dim of the tokens in [B, T] and [B, T, ..]. */
const TOKENS = 1;

/**
 * The ranks that split a model's tokens. All of them must make the same calls, with whole samples.
 */
export class SequenceRanks {
  private readonly heads: Ulysses;

  /** `group`: the ranks of one sample, in the order of their tokens. */
  constructor(
    /** The ranks of one sample, in the order of their tokens. */
    readonly group: ProcessGroup,
  ) {
    this.heads = new Ulysses(group);
  }

  /**
   * Returns this rank's part of the samples of one call of `model`. `tokens`: [B, T, ..]. If T is
   * not a multiple of the number of ranks, throws DS_SHAPE. In evaluation without gradients, it
   * returns null instead, and every rank computes all tokens.
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

/** The tokens of each sample that this rank computes. */
export class SequencePart {
  /** `share`: this rank's range of the tokens. */
  constructor(
    private readonly group: ProcessGroup,
    /** This rank's range of the tokens, and the exchange of heads for attention. */
    readonly share: TokenShare,
  ) {}

  /** Returns this rank's part of `x` [B, T, ..], which has all tokens. Not differentiable. */
  of(x: Tensor): Tensor {
    return noGrad(() => x.narrow(TOKENS, this.share.first, this.share.count).contiguous());
  }

  /**
   * Runs `body` with this rank's tokens: its attention sees all tokens, and its dropout and
   * positions use the indices of the tokens in the sample.
   */
  run<T>(body: () => T): T {
    return sharingTokens(this.share, body);
  }

  /**
   * Gathers the ranks' `x` [B, T / n, ..] to [B, T, ..]. All ranks must use the result in the same
   * way, because the gradient of x is this rank's part of the gradient.
   */
  whole(x: Tensor): Tensor {
    const { group, share } = this;
    const shared: SharedDim = { group, dim: TOKENS, sizes: group.ranks.map(() => share.count) };
    return gatherShared(x, shared);
  }

  /**
   * Returns the sum of the ranks' losses. Each rank has divided its loss by the number of targets
   * of all ranks.
   */
  sum(loss: Tensor): Tensor {
    return sumOverGroup(loss, this.group);
  }

  /** Sums integers over the ranks in place. Not differentiable. */
  total(counts: Tensor): void {
    this.group.allReduce(counts, { purpose: 'counted targets' }).wait();
  }
}
