// 1-bit SGD: after a warm-up, ranks exchange gradients with one bit per element and two means per
// row. Source: Seide et al. 2014, "1-Bit Stochastic Gradient Descent", in the form of CNTK's column
// quantizer.

import { namesOf, readOptions } from '../runtime/options.js';
import { requireInteger } from '../runtime/require-number.js';
import { numel } from '../runtime/view.js';
import type { ExchangingOptimizer, PayloadPass } from './exchange.js';
import type { UpdateSettings } from './optimizer.js';
import type { ParamsOf } from './param-groups.js';
import { Sgd, type SgdGroup, type SgdOptions } from './sgd.js';

/** Default hyperparameters of 1-bit SGD's groups, and the length of its warm-up. */
export interface OneBitSGDOptions extends SgdOptions {
  /** Number of updates with uncompressed gradients (the warm-up). Default: 100000. */
  freezeStep?: number;
}

/**
 * SGD with a 1-bit exchange of gradients. From update freezeStep + 1 on, ranks average their
 * gradients with one bit per element and error feedback. Each row of a parameter [out, ...] has two
 * levels: the mean of its negative elements, and the mean of the others. In a vector, each element
 * is a row, so its average is exact. Weight decay and momentum use the average, so all ranks
 * compute the same update. A single rank exchanges nothing.
 */
export class OneBitSGD extends Sgd implements ExchangingOptimizer<SgdGroup> {
  override readonly name = 'OneBitSGD';
  readonly levels = 'means';
  readonly needsResync = false;
  private readonly freezeStep: number;

  /** Throws DS_ARGUMENT as Sgd does, and for an invalid freezeStep. */
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
      resetsErrors: settings.step === this.freezeStep + 1,
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
