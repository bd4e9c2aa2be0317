// RMSNorm over the channels of all heads if each rank has some of the heads. OLMo 2 normalizes
// queries and keys in this way.
import type { ProcessGroup } from '../comm/index.js';
import { DsError } from '../errors.js';
import { Module } from '../nn/module.js';
import type { RMSNorm } from '../nn/norms.js';
import type { Parameter } from '../nn/parameter.js';
import { rsqrt, scope, type Tensor } from '../tensor/index.js';
import { copyToGroup, sumOverGroup } from './collectives.js';
import { cutAlong, type DimCut } from './rank-ranges.js';

/** An RMSNorm of channels that are split over ranks. The ranks sum the squares of each row. */
export class HeadsNorm extends Module {
  /** [channels here]. */
  readonly weight: Parameter;
  /** Is added to the mean square. */
  readonly eps: number;
  private readonly channels: number;

  /**
   * Takes over the weight of `original`. Throws DS_ARGUMENT if several ranks have the same head.
   */
  constructor(
    original: RMSNorm,
    /** The ranks that split the channels. */
    readonly group: ProcessGroup,
    cut: DimCut,
  ) {
    super();
    const { weight, eps } = original;
    this.channels = weight.size(0);
    const counts = cut.map(({ pieces, ranges }) => [
      pieces,
      ranges.reduce((sum, { count }) => sum + count, 0),
    ]);
    if (counts.some(([pieces, all]) => pieces !== all)) throw sharedHeads(group.size);
    cutAlong(weight, 0, cut, group.rank);
    this.weight = weight;
    this.eps = eps;
  }

  /** Maps x [.., channels here] to the same shape. Computes the statistics in f32. */
  override forward(x: Tensor): Tensor {
    const { group, weight, eps, channels } = this;
    return scope(() => {
      const wide = x.dtype === 'f64' ? x : x.to('f32');
      const squares = wide.mul(wide).sum({ dims: [-1], keepDim: true });
      // Each rank's result depends on the squares of all ranks, so copyToGroup() sums their
      // gradient too.
      const all = copyToGroup(sumOverGroup(squares, group), group);
      const normed = wide.mul(rsqrt(all.mul(1 / channels).add(eps)));
      return normed.to(x.dtype).mul(weight);
    });
  }
}

function sharedHeads(ranks: number): DsError {
  return new DsError({
    code: 'DS_ARGUMENT',
    op: 'tensor_parallel of a norm over all heads',
    expected: 'at most as many ranks as key and value heads',
    got: `${ranks} ranks, several with the same head`,
    hint: 'Lower tensor_parallel.autotp_size to the number of key and value heads.',
  });
}
