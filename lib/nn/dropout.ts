// Dropout: of single elements, and of whole channels.
import { DsError } from '../errors.js';
import { requireFinite } from '../runtime/require-number.js';
import { describe } from '../runtime/view.js';
import { ones as constantOnes, dropout, scope, type Tensor } from '../tensor/index.js';
import { requireTensor } from '../tensor/ops/shapes.js';
import { Module } from './module.js';

/** Zeroes elements with probability `p` while training. */
export class Dropout extends Module {
  /** Throws DS_ARGUMENT for invalid sizes or options. */
  constructor(
    /** Probability that an element becomes 0, below 1. */
    readonly p = 0.5,
  ) {
    super();
    requireFinite('Dropout p', p, 0, 1);
  }

  /** In training drops elements and scales the rest by 1 / (1 - p); else returns the input. */
  override forward(x: Tensor): Tensor {
    return this.training ? dropout(x, this.p) : x;
  }
}

/** Base of both channel dropouts: zeroes whole channels with probability `p` while training. */
abstract class FeatureDropout extends Module {
  protected constructor(
    private readonly op: string,
    /** Probability of a zero. */
    readonly p: number,
    /**
     * Numbers of dims that an input may have: with, and possibly without, a dim of samples.
     */
    private readonly ranks: readonly number[],
  ) {
    super();
    requireFinite(`${op} p`, p, 0, 1);
  }

  /** Returns the number of leading dims: each of their elements, a channel, is drawn separately. */
  protected abstract drawn(x: Tensor): number;

  override forward(x: Tensor): Tensor {
    requireTensor(this.op, x);
    if (!this.ranks.includes(x.ndim)) {
      const expected = `a tensor of ${this.ranks.join(' or ')} dims`;
      throw new DsError({ code: 'DS_SHAPE', op: this.op, expected, got: describe(x) });
    }
    if (!this.training || this.p === 0) return x;
    const lead = this.drawn(x);
    const shape = x.shape.map((size, d) => (d < lead ? size : 1));
    const { dtype, device } = x;
    return scope(() => x.mul(dropout(constantOnes(shape, { dtype, device }), this.p)));
  }
}

/** Drops whole channels of [N, C, T], or of [C, T] without samples. Source: Tompson et al. 2015. */
export class Dropout1d extends FeatureDropout {
  /** Throws DS_ARGUMENT for invalid sizes or options. */
  constructor(p = 0.5) {
    super('Dropout1d', p, [2, 3]);
  }

  protected drawn(x: Tensor): number {
    return x.ndim - 1;
  }
}

/** Drops whole channels of [N, C, H, W], or of [N, C, T], as in PyTorch. */
export class Dropout2d extends FeatureDropout {
  /** Throws DS_ARGUMENT for invalid sizes or options. */
  constructor(p = 0.5) {
    super('Dropout2d', p, [3, 4]);
  }

  protected drawn(): number {
    return 2;
  }
}
