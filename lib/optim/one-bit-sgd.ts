// 1-bit SGD: after a warm-up, ranks exchange gradients with one bit per element and two means per
// row.
// Source: Seide et al. 2014, "1-Bit Stochastic Gradient Descent", in the form of CNTK's column
// quantizer.

import { namesOf, readOptions } from '../runtime/options.js';
import { requireInteger } from '../runtime/require-number.js';
import { numel } from '../runtime/view.js';
import type { ExchangingOptimizer, PayloadPass } from './exchange.js';
import type { UpdateSettings } from './optimizer.js';
import type { ParamsOf } from './param-groups.js';
import { Sgd, type SgdGroup, type SgdOptions } from './sgd.js';

/** Defaults of 1-bit SGD's groups, and its phases. */
export interface OneBitSGDOptions extends SgdOptions {
  /** Updates of the warm-up with uncompressed gradients. Default: 100000. */
  freezeStep?: number;
}

/**
 * SGD with a 1-bit exchange of gradients. From update freezeStep + 1 on, gradients are averages
 * over ranks with one bit per element and error feedback. Each row of a parameter [out, ...] has
 * two values: the mean of its negative elements, and the mean of the others. In vectors each
 * element is a row, so its mean is exact. Weight decay and momentum follow, equal on every rank. A
 * single rank exchanges nothing: it is SGD.
 */
export class OneBitSGD extends Sgd implements ExchangingOptimizer<SgdGroup> {
  override readonly name = 'OneBitSGD';
  readonly levels = 'means';
  readonly isAdrift = false;
  private readonly freezeStep: number;

  /** Throws DS_ARGUMENT, see Sgd. */
  constructor(params: ParamsOf<SgdGroup>, given: OneBitSGDOptions = {}) {
    const { freezeStep = 100_000, ...options } = readOptions(
      'OneBitSGD',
      given,
      namesOf.OneBitSGDOptions,
    );
    super(params, options);
    this.freezeStep = requireInteger('OneBitSGD freezeStep', freezeStep, 0);
  }

  segmentSize(shape: readonly number[]): number {
    const [rows = 1] = shape;
    return shape.length < 2 ? 1 : Math.max(1, numel(shape) / Math.max(1, rows));
  }

  sumsGradients(step: number): boolean {
    return step <= this.freezeStep;
  }

  passOf(settings: UpdateSettings<SgdGroup>): PayloadPass | null {
    if (this.sumsGradients(settings.step)) return null;
    return {
      startsAfresh: settings.step === this.freezeStep + 1,
      write({ grad, control }, payload, kernels) {
        kernels.momentPayload({ m: null, grad, payload, control, beta1: 0 });
      },
      apply: (tensors, payload, kernels) => {
        this.update({ ...tensors, grad: payload }, settings, kernels);
      },
    };
  }

  resync(): null {
    return null;
  }
}
