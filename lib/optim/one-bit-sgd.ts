// 1-bit SGD: after a warm-up ranks exchange gradients of one bit per element and two means per row.
// Source: Seide et al. 2014, "1-Bit Stochastic Gradient Descent", as CNTK's column quantizer has
// it.

import { type OptionNames, readOptions } from '../runtime/options.js';
import { requireInteger } from '../runtime/require-number.js';
import { numel } from '../runtime/view.js';
import type { ExchangingOptimizer, PayloadPass } from './exchange.js';
import type { UpdateSettings } from './optimizer.js';
import type { ParamsOf } from './param-groups.js';
import { Sgd, type SgdGroup, type SgdOptions } from './sgd.js';

/** Defaults of 1-bit SGD's groups, and its phases. */
export interface OneBitSGDOptions extends SgdOptions {
  /** Updates of the warm-up, whose gradients are summed as they are. Default 100000. */
  freezeStep?: number;
}

const NAMES: OptionNames<OneBitSGDOptions> = {
  ...{ lr: true, momentum: true, dampening: true, weightDecay: true, nesterov: true },
  freezeStep: true,
};

/**
 * SGD whose gradients, from update freezeStep + 1 on, are the ranks' average of one bit per element
 * with error feedback. Each row of a parameter [out, ...] has two values, the means of what is
 * negative and of what is not; in parameters of one dim each element is a row, which its mean holds
 * exactly. Weight decay and momentum follow, alike on every rank. One rank exchanges nothing: it is
 * SGD.
 */
export class OneBitSGD extends Sgd implements ExchangingOptimizer<SgdGroup> {
  override readonly name = 'OneBitSGD';
  readonly levels = 'means';
  readonly isAdrift = false;
  private readonly freezeStep: number;

  /** Throws DS_ARGUMENT, see Sgd. */
  constructor(params: ParamsOf<SgdGroup>, given: OneBitSGDOptions = {}) {
    const { freezeStep = 100_000, ...options } = readOptions('OneBitSGD', given, NAMES);
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
