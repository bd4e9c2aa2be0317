// The head of a language model, split along the vocabulary: computes logits, and a loss without
// gathering the logits of all ranks. Source: Shoeybi et al. 2019 (Megatron-LM).

import type { ProcessGroup } from '../comm/index.js';
import { DsError } from '../errors.js';
import { Module } from '../nn/module.js';
import type { Parameter } from '../nn/parameter.js';
import { leading, required } from '../runtime/required.js';
import {
  type ClassShare,
  type LinearCrossEntropyOptions,
  linearCrossEntropy,
  linearPadded,
  type Tensor,
} from '../tensor/index.js';
import { copyToGroup, gatherShared } from './collectives.js';
import { cutAlong, type Range, rangesFor, widthsOf } from './rank-ranges.js';

/** A head that is not split: a module with a weight [V, C] and no bias. */
export interface WholeHead extends Module {
  /** The weight [V, C]. */
  readonly weight: Parameter;
  /** Must be absent or null; otherwise VocabularyHead throws DS_ARGUMENT. */
  readonly bias?: Parameter | null;
}

/**
 * Returns this rank's classes for linearCrossEntropy(), with the exchange of its partial results.
 */
function classShareOf(group: ProcessGroup, { first }: Range, classes: number): ClassShare {
  return {
    first,
    classes,
    combine: (values, op) => group.allReduce(values, { op, purpose: 'vocabulary loss' }).wait(),
  };
}

/**
 * Returns crossEntropy(linear(x, weight), target) if each rank has the rows of the weight from
 * `first` on. x [.., C], target [..] and the loss are equal on all ranks. The gradient of x covers
 * all classes.
 *
 * Each chunk of rows exchanges three numbers per row, or five if correct rows are counted. See
 * linearCrossEntropy() for options and errors; also throws DS_COMM.
 */
export function vocabularyCrossEntropy(
  x: Tensor,
  weight: Tensor,
  target: Tensor,
  options: LinearCrossEntropyOptions & { group: ProcessGroup; first: number; classes: number },
): Tensor {
  const { group, first, classes, ...rest } = options;
  const classShare = classShareOf(group, { first, count: weight.size(0) }, classes);
  return linearCrossEntropy(copyToGroup(x, group), weight, target, { ...rest, classShare });
}

/** A head [V, C] that is split along its rows. x [.., C] is equal on all ranks. */
export class VocabularyHead extends Module {
  /**
   * The weight [rows here, channels]. If the whole head was tied to the token table, the table's
   * weight.
   */
  readonly weight: Parameter;
  private readonly range: Range;
  private readonly widths: readonly number[];

  /**
   * Takes over the weight of `original`, which the token table may have split already. Throws
   * DS_ARGUMENT if the head has a bias, or if there are more ranks than rows.
   */
  constructor(
    original: WholeHead,
    /** The ranks that split the head. */
    readonly group: ProcessGroup,
  ) {
    super();
    const { weight, bias } = original;
    if (bias) throw noBiasError();
    const [classes] = leading(weight.region.whole, 1);
    const ranges = rangesFor('rows', classes, group);
    const cut = [{ ranges, pieces: classes }];
    if (!weight.isCut) cutAlong(weight, 0, cut, group.rank);
    this.weight = weight;
    this.range = required(ranges[group.rank]);
    this.widths = widthsOf(cut, classes);
  }

  /**
   * Maps x [.., C] to the logits of all classes, [.., V], on every rank. Throws DS_SHAPE if the
   * sizes do not fit, DS_COMM if the ranks disagree or one fails.
   */
  override forward(x: Tensor): Tensor {
    const { group, widths } = this;
    const ownTensor = linearPadded(copyToGroup(x, group), this.weight);
    return gatherShared(ownTensor, { group, dim: -1, sizes: widths });
  }

  /** Returns the loss of x [.., C] for the classes `target` [..]; see vocabularyCrossEntropy(). */
  lossOf(x: Tensor, target: Tensor, options: LinearCrossEntropyOptions): Tensor {
    const { group, weight, range } = this;
    const [classes] = leading(weight.region.whole, 1);
    return vocabularyCrossEntropy(x, weight, target, {
      ...options,
      group,
      first: range.first,
      classes,
    });
  }
}

function noBiasError(): DsError {
  return new DsError({
    code: 'DS_ARGUMENT',
    op: 'parallelize',
    expected: 'a head without a bias for the style "head"',
    got: 'a head with a bias',
    hint: 'Use the style "columnGathered", which gathers all logits for the loss.',
  });
}
