// LAMB: scales the step of each parameter by its trust ratio, the ratio of weight norm to step
// norm. Sources: You et al. 2020, arXiv:1904.00962, algorithm 2; DeepSpeed's FusedLamb.

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
  /** Added to the square root of the second moment. */
  eps: number;
  /** Largest trust ratio of a parameter. */
  maxCoeff: number;
  /** Smallest trust ratio of a parameter. */
  minCoeff: number;
}

/** Default hyperparameters of LAMB's groups, and options of all groups. */
export interface LambOptions {
  /** Learning rate. Default: 1e-3. */
  lr?: number;
  /** Decay factors of the first and the second moment. Default: [0.9, 0.999]. */
  betas?: readonly [number, number];
  /** Added to the denominator of an update. Default: 1e-8. */
  eps?: number;
  /** Add eps before the square root is taken. Default: false. */
  epsInsideSqrt?: boolean;
  /** This fraction of the weights is added to the direction. Default: 0. */
  weightDecay?: number;
  /** Largest trust ratio. Default: 10. */
  maxCoeff?: number;
  /** Smallest trust ratio. Default: 0.01. */
  minCoeff?: number;
  /** Correct the bias of moments that start at 0. Default: true. */
  biasCorrection?: boolean;
  /**
   * True: correct the bias of the moments, as in the paper. False: correct the step, as DeepSpeed
   * does. Default: false.
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
 * The trust ratio is 1 if either norm is 0. The factor sqrt(c2) / c1 is the bias correction of
 * DeepSpeed's kernel. The trust ratio already normalizes u, so this factor changes the size of
 * early steps. With momentCorrection, the learning rate is lr, as in the paper, and
 *
 *   u = (m / c1) / (sqrt(v / c2) + eps) + wd p
 *
 * csrc/ops/lamb_rule.h has the exact sequence of operations.
 */
export class Lamb extends StandaloneOptimizer<LambGroup> implements SummedOptimizer<LambGroup> {
  readonly name = 'Lamb';
  readonly groups: LambGroup[];
  private readonly biasCorrection: boolean;
  private readonly momentCorrection: boolean;
  private readonly epsInsideSqrt: boolean;
  /** Trust ratios of the last update. The owner of each range owns their memory. */
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

  /** Returns the number of sums: the squares of weights, and of directions. */
  override sumsPerRound(): readonly number[] {
    return [2];
  }

  needsWholeParameters(): boolean {
    return true;
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
   * Returns the trust ratios of the last update by parameter name. The map has the parameters that
   * this rank updates in whole or in part. Waits for the update. Throws DS_RELEASED after the
   * engine is destroyed.
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

/** Returns the operands that LAMB's ops share. */
export function operands({ master, state, starts, control }: UpdateTensors, rule: LambScalars) {
  return { master, m: state.exp_avg!, v: state.exp_avg_sq!, starts, control, rule };
}

/**
 * Enqueues the computation of the trust ratios from the first-round sums, and the update of the
 * weights.
 */
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
