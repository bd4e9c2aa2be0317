// LAMB: Adam's direction, scaled per parameter by the ratio of weight norm to direction norm.
// Sources: You et al. 2020, arXiv:1904.00962, algorithm 2; DeepSpeed's FusedLamb.

import type { LambScalars } from '../runtime/kernels.generated.js';
import { namesOf, readOptions } from '../runtime/options.js';
import { required } from '../runtime/required.js';
import type { Tensor } from '../tensor/index.js';
import { adamDefaults } from './adam-rule.js';
import { type DeclaredState, perElement, perParameter } from './declared-state.js';
import { requireWhole } from './flat-slice.js';
import type { SummedOptimizer, UpdateSettings, UpdateTensors } from './optimizer.js';
import { makeGroups, type ParamGroup, type ParamsOf } from './param-groups.js';
import { StandaloneOptimizer } from './standalone.js';
import { TrustRatios } from './trust-ratios.js';
import type { UpdateKernels } from './update-kernels.js';

/** A parameter group of LAMB. Fields may change between steps. */
export interface LambGroup extends ParamGroup {
  betas: readonly [number, number];
  /** Added to the root of the second moment. */
  eps: number;
  /** Largest trust ratio of a parameter. */
  maxCoeff: number;
  /** Smallest trust ratio of a parameter. */
  minCoeff: number;
}

/** Defaults of LAMB's groups. */
export interface LambOptions {
  /** Learning rate. Default: 1e-3. */
  lr?: number;
  /** Decay factors of the first and the second moment. Default: [0.9, 0.999]. */
  betas?: readonly [number, number];
  /** Added to the denominator of an update. Default: 1e-8. */
  eps?: number;
  /** Adds eps before the square root is taken. Default: false. */
  epsInsideSqrt?: boolean;
  /** Fraction of the weights that is added to the direction. Default: 0. */
  weightDecay?: number;
  /** Largest trust ratio. Default: 10. */
  maxCoeff?: number;
  /** Smallest trust ratio. Default: 0.01. */
  minCoeff?: number;
  /** Corrects moments that start at 0. Default: true. */
  biasCorrection?: boolean;
  /**
   * True: correct the moments, as in the paper. False: correct the step, as in DeepSpeed. Default:
   * false.
   */
  momentCorrection?: boolean;
}

/**
 * LAMB: Adam with a trust ratio for each parameter.
 *
 *   m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g^2
 *   u = m / (sqrt(v) + eps) + wd p
 *   p -= lr sqrt(c2) / c1 * clamp(||p|| / ||u||, min, max) u, with c = 1 - b^t
 *
 * The trust ratio is 1 if either norm is 0. This is the correction of DeepSpeed's kernel. The trust
 * ratio does not compensate it, so early steps have another size than intended. With
 * momentCorrection the learning rate is lr, as in the paper, and
 *
 *   u = (m / c1) / (sqrt(v / c2) + eps) + wd p
 *
 * csrc/ops/lamb_rule.h has the sequence of operations.
 */
export class Lamb extends StandaloneOptimizer<LambGroup> implements SummedOptimizer<LambGroup> {
  readonly name = 'Lamb';
  readonly groups: LambGroup[];
  private readonly biasCorrection: boolean;
  private readonly momentCorrection: boolean;
  private readonly epsInsideSqrt: boolean;
  /** Trust ratios of the last update. Their memory belongs to the owner of each range. */
  private readonly ratios = new TrustRatios();

  /** Throws DS_ARGUMENT for an invalid option or group. */
  constructor(params: ParamsOf<LambGroup>, given: LambOptions = {}) {
    super();
    const options = readOptions('Lamb', given, namesOf.LambOptions);
    const { maxCoeff = 10, minCoeff = 0.01 } = options;
    const defaults = { ...adamDefaults(options), maxCoeff, minCoeff };
    this.groups = makeGroups<LambGroup>('Lamb', params, defaults);
    this.biasCorrection = options.biasCorrection ?? true;
    this.momentCorrection = options.momentCorrection ?? false;
    this.epsInsideSqrt = options.epsInsideSqrt ?? false;
  }

  declareState(_group: number, shape: readonly number[]): DeclaredState {
    return {
      exp_avg: perElement(shape),
      exp_avg_sq: perElement(shape),
      trust_ratio: perParameter([], { saved: false, initial: 1 }),
    };
  }

  /** Squares of weights and of directions. */
  override sumsPerRound(): readonly number[] {
    return [2];
  }

  needsWholeParameters(): boolean {
    return true;
  }

  /** Throws DS_CONFIG for a range with part of a parameter, because a norm needs all of it. */
  update(
    tensors: UpdateTensors,
    settings: UpdateSettings<LambGroup>,
    kernels: UpdateKernels,
  ): void {
    requireWhole(this.name, tensors);
    this.measure(tensors, settings, kernels);
    this.applySums(tensors, settings, kernels);
  }

  measure(
    tensors: UpdateTensors,
    settings: UpdateSettings<LambGroup>,
    kernels: UpdateKernels,
  ): void {
    const { group, grad, places, sums } = tensors;
    if (places.length === 0) return;
    kernels.lambMoments({ ...operands(tensors, this.rule(settings, group)), grad, sums: sums[0]! });
  }

  applySums(
    tensors: UpdateTensors,
    settings: UpdateSettings<LambGroup>,
    kernels: UpdateKernels,
  ): void {
    const { group, places } = tensors;
    if (places.length === 0) return;
    const own = required(settings.groups[group]);
    const rule = this.rule(settings, group);
    applyRatios(
      tensors,
      { rule, group: own, coefficients: this.ratios.of(tensors, kernels) },
      kernels,
    );
  }

  /**
   * Returns a copy of the trust ratios of the last update by name, for parameters that this rank
   * updates in whole or in part. Waits for that update. Throws DS_RELEASED after the engine is
   * destroyed.
   */
  getLambCoeffs(): Map<string, number> {
    return this.ratios.read();
  }

  private rule({ step, groups }: UpdateSettings<LambGroup>, group: number): LambScalars {
    const { lr, betas, eps, weightDecay } = required(groups[group]);
    const [beta1, beta2] = betas;
    const [c1, c2] = this.biasCorrection ? [1 - beta1 ** step, 1 - beta2 ** step] : [1, 1];
    const correction = this.momentCorrection
      ? { lr, correction1: c1, correction2: c2 }
      : { lr: (lr * Math.sqrt(c2)) / c1, correction1: 1, correction2: 1 };
    return { ...correction, beta1, beta2, eps, weightDecay, epsInsideSqrt: this.epsInsideSqrt };
  }
}

/** The operands of LAMB's ops. */
export function operands({ master, state, starts, control }: UpdateTensors, rule: LambScalars) {
  return { master, m: state.exp_avg!, v: state.exp_avg_sq!, starts, control, rule };
}

/** Enqueues the trust ratios by the sums of the first round, and the update of the weights. */
export function applyRatios(
  tensors: UpdateTensors,
  { rule, group, coefficients }: { rule: LambScalars; group: LambGroup; coefficients: Tensor },
  kernels: UpdateKernels,
): void {
  const { weight, control, sums } = tensors;
  const bounds = { minCoefficient: group.minCoeff, maxCoefficient: group.maxCoeff };
  kernels.lambCoefficients({ sums: sums[0]!, coefficients, control, ...bounds });
  kernels.lambApply({ ...operands(tensors, rule), weight, coefficients });
}
