// 1-bit LAMB: after a warm-up, ranks exchange moments with one bit per element, and trust ratios
// follow a fresh second moment. Sources: Li et al. 2021, arXiv:2104.06069; DeepSpeed's OneBitLamb.

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

/** Defaults of 1-bit LAMB's groups, its phases, and limits of trust ratios after the warm-up. */
export interface OneBitLambOptions {
  /** Learning rate. Default: 1e-3. */
  lr?: number;
  /** Decay factors of the first and the second moment. Default: [0.9, 0.999]. */
  betas?: readonly [number, number];
  /** Added to the denominator of an update. Default: 1e-8. */
  eps?: number;
  /** Fraction of the weights that is added to the direction. Default: 0. */
  weightDecay?: number;
  /** Largest trust ratio in the warm-up. Default: 10. */
  maxCoeff?: number;
  /** Smallest trust ratio in the warm-up. Default: 0.01. */
  minCoeff?: number;
  /** Updates of the warm-up with uncompressed gradients. Default: 100000. */
  freezeStep?: number;
  /** Decay of the mean of the warm-up's trust ratios. Default: 0.9. */
  coeffBeta?: number;
  /** Largest factor on that mean. Default: 4. */
  factorMax?: number;
  /** Smallest factor on that mean. Default: 0.5. */
  factorMin?: number;
  /** Maximum relative change of the factor between updates. Default: 0.1. */
  factorThreshold?: number;
}

/**
 * 1-bit LAMB, as in DeepSpeed. Updates 1 to freezeStep: LAMB without bias correction; `frozen` is
 * the mean of its trust ratios other than 1. Afterwards v is constant, and
 *
 *   m = b1 m + (1 - b1) g of each rank's own gradient
 *
 * is replaced by the average over ranks, with one bit per element and error feedback. The gradient
 * that results from it updates a copy of v, `fresh`:
 *
 *   g = (m - b1 m_before) / (1 - b1)
 *
 * The trust ratio is frozen * factor. The factor is the largest over the parameter, within its
 * bounds (see OneBitLambCoefficients in csrc/ops/onebit_lamb.h):
 *
 *   factor = max((sqrt(v) + eps) / (sqrt(fresh) + eps))
 *   p -= lr ratio (m / (sqrt(v) + eps) + wd p)
 *
 * Each parameter has its own scale in the exchange, so moments do not need DeepSpeed's scaling
 * before it.
 */
export class OneBitLamb
  extends StandaloneOptimizer<LambGroup>
  implements ExchangingOptimizer<LambGroup>
{
  readonly name = 'OneBitLamb';
  readonly groups: LambGroup[];
  readonly levels = 'rms';
  readonly isAdrift = false;
  private readonly freezeStep: number;
  private readonly coeffBeta: number;
  private readonly bounds: { min: number; max: number; threshold: number };
  /** By the coefficients of each range, which the range's owner frees. */
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

  /** Returns the sums of LAMB in the warm-up, then of OneBitLambMoments. */
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

  /** Throws DS_CONFIG for a range with part of a parameter, because a norm needs all of it. */
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
      startsAfresh: isFirst,
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
   * Returns a copy of the trust ratios of the last update by name, for parameters that this rank
   * updates in whole or in part. Waits for that update. Throws DS_RELEASED after the engine is
   * destroyed.
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
    const rule = createPlainRule(group);
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
    const { rule, ...shared } = operands(tensors, createPlainRule(own));
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

/** Creates LAMB's rule without bias correction. */
function createPlainRule({ lr, betas: [beta1, beta2], eps, weightDecay }: LambGroup): LambScalars {
  const uncorrected = { correction1: 1, correction2: 1, epsInsideSqrt: false };
  return { lr, beta1, beta2, eps, weightDecay, ...uncorrected };
}
