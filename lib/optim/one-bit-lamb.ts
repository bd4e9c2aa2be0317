// 1-bit LAMB: after a warm-up, ranks exchange first moments with one bit per element, and a fresh
// second moment adjusts the trust ratios. Sources: Li et al. 2021, arXiv:2104.06069; DeepSpeed's
// OneBitLamb.

import type { LambScalars } from '../runtime/kernels.generated.js';
import { namesOf, readOptions } from '../runtime/options.js';
import { requireFinite, requireInteger } from '../runtime/require-number.js';
import { required } from '../runtime/required.js';
import type { Tensor } from '../tensor/index.js';
import { adamDefaults } from './adam-rule.js';
import { type DeclaredState, perElement, perParameter } from './declared-state.js';
import {
  type ExchangingOptimizer,
  type PayloadPass,
  wholeParameter,
  writeMoments,
} from './exchange.js';
import { requireWhole } from './flat-slice.js';
import { applyRatios, type LambGroup, operands } from './lamb.js';
import type { UpdateSettings, UpdateTensors } from './optimizer.js';
import { makeGroups, type ParamsOf } from './param-groups.js';
import { StandaloneOptimizer } from './standalone.js';
import { TrustRatios } from './trust-ratios.js';
import type { UpdateKernels } from './update-kernels.js';

/**
 * Default hyperparameters of 1-bit LAMB's groups, the length of its warm-up, and limits of trust
 * ratios after it.
 */
export interface OneBitLambOptions {
  /** Learning rate. Default: 1e-3. */
  lr?: number;
  /** Decay factors of the first and the second moment. Default: [0.9, 0.999]. */
  betas?: readonly [number, number];
  /** Added to the denominator of an update. Default: 1e-8. */
  eps?: number;
  /** This fraction of the weights is added to the direction. Default: 0. */
  weightDecay?: number;
  /** Largest trust ratio in the warm-up. Default: 10. */
  maxCoeff?: number;
  /** Smallest trust ratio in the warm-up. Default: 0.01. */
  minCoeff?: number;
  /** Number of updates with uncompressed gradients (the warm-up). Default: 100000. */
  freezeStep?: number;
  /** Decay of the running mean of the warm-up's trust ratios. Default: 0.9. */
  coeffBeta?: number;
  /** Largest factor of this mean after the warm-up. Default: 4. */
  factorMax?: number;
  /** Smallest factor of this mean after the warm-up. Default: 0.5. */
  factorMin?: number;
  /** Maximum relative change of the factor between updates. Default: 0.1. */
  factorThreshold?: number;
}

/**
 * 1-bit LAMB, as in DeepSpeed. Updates 1 to freezeStep are LAMB without bias correction; `frozen`
 * is the running mean of their trust ratios other than 1. Afterwards v is constant. Each rank
 * computes m from its own gradient:
 *
 *   m = b1 m + (1 - b1) g
 *
 * The average of m over the ranks then replaces m, exchanged with one bit per element and error
 * feedback. The gradient that this average implies updates `fresh`, a copy of v:
 *
 *   g = (m - b1 m_before) / (1 - b1)
 *
 * The trust ratio is frozen * factor. The factor is the largest ratio in the parameter, within its
 * bounds (see OneBitLambCoefficients in csrc/ops/onebit_lamb.h):
 *
 *   factor = max((sqrt(v) + eps) / (sqrt(fresh) + eps))
 *   p -= lr ratio (m / (sqrt(v) + eps) + wd p)
 *
 * DeepSpeed scales moments before the exchange. That is not necessary here, because each parameter
 * has its own levels.
 */
export class OneBitLamb
  extends StandaloneOptimizer<LambGroup>
  implements ExchangingOptimizer<LambGroup>
{
  readonly name = 'OneBitLamb';
  readonly groups: LambGroup[];
  readonly levels = 'rms';
  readonly needsResync = false;
  private readonly freezeStep: number;
  private readonly coeffBeta: number;
  private readonly bounds: { min: number; max: number; threshold: number };
  /** Trust ratios of the last update. The owner of each range owns their memory. */
  private readonly ratios = new TrustRatios();

  /** Throws DS_ARGUMENT for an invalid option or parameter group. */
  constructor(params: ParamsOf<LambGroup>, given: OneBitLambOptions = {}) {
    super();
    const options = readOptions('OneBitLamb', given, namesOf.OneBitLambOptions);
    const { maxCoeff = 10, minCoeff = 0.01 } = options;
    const defaults = { ...adamDefaults(options), maxCoeff, minCoeff };
    this.groups = makeGroups<LambGroup>('OneBitLamb', params, defaults);
    const { coeffBeta = 0.9, factorMin = 0.5, factorMax = 4, factorThreshold = 0.1 } = options;
    this.freezeStep = requireInteger('OneBitLamb freezeStep', options.freezeStep ?? 100_000, 1);
    requireFinite('OneBitLamb coeffBeta', coeffBeta, 0, 1);
    requireFinite('OneBitLamb factorMin', factorMin, 0);
    requireFinite('OneBitLamb factorMax', factorMax, factorMin);
    requireFinite('OneBitLamb factorThreshold', factorThreshold, 0);
    this.coeffBeta = coeffBeta;
    this.bounds = { min: factorMin, max: factorMax, threshold: factorThreshold };
  }

  declareState(_group: number, shape: readonly number[]): DeclaredState {
    return {
      exp_avg: perElement(shape),
      exp_avg_sq: perElement(shape),
      exp_avg_sq_fresh: perElement(shape),
      trust_ratio: perParameter([], { saved: false, initial: 1 }),
      frozen_ratio: perParameter([]),
      factor: perParameter([], { initial: 1 }),
    };
  }

  /** Returns the number of sums: of LAMB in the warm-up, and of OneBitLambMoments after it. */
  override sumsPerRound(): readonly number[] {
    return [2, 3];
  }

  needsWholeParameters(): boolean {
    return true;
  }

  segmentSize(shape: readonly number[]): number {
    return wholeParameter(shape);
  }

  sumsGradients(step: number): boolean {
    return step <= this.freezeStep;
  }

  /**
   * Throws DS_CONFIG for a range with a part of a parameter, because norms need whole parameters.
   */
  update(
    tensors: UpdateTensors,
    settings: UpdateSettings<LambGroup>,
    kernels: UpdateKernels,
  ): void {
    requireWhole(this.name, tensors);
    if (tensors.places.length === 0) return;
    if (this.sumsGradients(settings.step)) {
      this.warmUp(tensors, settings, kernels);
      return;
    }
    const payload = kernels.workspace(tensors.master, tensors.master.numel, 'f32');
    const pass = required(this.passOf(settings));
    pass.write(tensors, payload, kernels);
    pass.apply(tensors, payload, kernels);
    payload.release();
  }

  passOf(settings: UpdateSettings<LambGroup>): PayloadPass | null {
    if (this.sumsGradients(settings.step)) return null;
    const isFirst = settings.step === this.freezeStep + 1;
    return {
      resetsErrors: isFirst,
      write: writeMoments(settings.groups),
      apply: (tensors, payload, kernels) => {
        if (tensors.places.length === 0) return;
        const { exp_avg_sq: v, exp_avg_sq_fresh: fresh } = tensors.state;
        if (isFirst) kernels.copy({ in: v!, out: fresh! });
        this.applyMoment(tensors, payload, settings, kernels);
      },
    };
  }

  resync(): null {
    return null;
  }

  /**
   * Returns the trust ratios of the last update by parameter name. The map has the parameters that
   * this rank updates in whole or in part. Waits for the update. Throws DS_RELEASED after the
   * engine is destroyed.
   */
  getLambCoeffs(): Map<string, number> {
    return this.ratios.read();
  }

  private warmUp(
    tensors: UpdateTensors,
    settings: UpdateSettings<LambGroup>,
    kernels: UpdateKernels,
  ): void {
    const { grad, state, control, sums } = tensors;
    const group = required(settings.groups[tensors.group]);
    const rule = uncorrectedScalars(group);
    const coefficients = this.ratios.of(tensors, kernels);
    kernels.lambMoments({ ...operands(tensors, rule), grad, sums: sums[0]! });
    applyRatios(tensors, { rule, group, coefficients }, kernels);
    const beta = this.coeffBeta;
    kernels.oneBitLambAverage({ coefficients, frozen: state.frozen_ratio!, control, beta });
  }

  private applyMoment(
    tensors: UpdateTensors,
    payload: Tensor,
    settings: UpdateSettings<LambGroup>,
    kernels: UpdateKernels,
  ): void {
    const { group, weight, state, control, sums } = tensors;
    const own = required(settings.groups[group]);
    const { betas, eps, weightDecay } = own;
    const coefficients = this.ratios.of(tensors, kernels);
    const { rule, ...shared } = operands(tensors, uncorrectedScalars(own));
    kernels.oneBitLambMoments({
      ...shared,
      fresh: state.exp_avg_sq_fresh!,
      payload,
      sums: sums[1]!,
      beta1: betas[0],
      beta2: betas[1],
      eps,
      weightDecay,
    });
    kernels.oneBitLambCoefficients({
      sums: sums[1]!,
      frozen: state.frozen_ratio!,
      factor: state.factor!,
      coefficients,
      control,
      decays: weightDecay > 0,
      least: this.bounds.min,
      most: this.bounds.max,
      threshold: this.bounds.threshold,
    });
    kernels.lambApply({ ...shared, rule, weight, coefficients });
  }
}

/** Returns the scalars of LAMB's rule without bias correction. */
function uncorrectedScalars({
  lr,
  betas: [beta1, beta2],
  eps,
  weightDecay,
}: LambGroup): LambScalars {
  const uncorrected = { correction1: 1, correction2: 1, epsInsideSqrt: false };
  return { lr, beta1, beta2, eps, weightDecay, ...uncorrected };
}
