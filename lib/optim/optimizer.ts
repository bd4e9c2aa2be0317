// The Optimizer interface: parameter groups, declared state, and the update rule of a flat range.
// Every optimizer in this folder implements it.
import type { DType } from '../runtime/dtype.js';
import type { Tensor } from '../tensor/index.js';
import type { StateKeeper } from './declared-state.js';
import type { ParamGroup } from './param-groups.js';
import type { UpdateKernels } from './update-kernels.js';

/** Where a parameter, whole or in part, is in a range. Offsets and sizes count elements. */
export interface ParameterPlace {
  /** Name of the parameter in its model. */
  readonly name: string;
  /** Shape of the whole parameter. */
  readonly shape: readonly number[];
  /** Index in the parameter of its first element in the range. */
  readonly from: number;
  /** Offset of this element from the start of the range. */
  readonly offset: number;
  /** Number of its elements in the range. Fewer than its shape has, if ranks hold parts. */
  readonly numel: number;
}

/**
 * The tensors of one range: parameters of one group with the same kind of state. All tensors are
 * flat and in one memory. Parameters start at multiples of 64 elements, or of a larger block.
 * Between parameters, master, gradient and state are zero.
 */
export interface UpdateTensors {
  /** Index of the parameter group. */
  group: number;
  /** f32 weights that the update changes. */
  master: Tensor;
  /**
   * Gradient in the dtype of the weights, times a scale. control[0] is the factor that removes the
   * scale.
   */
  grad: Tensor;
  /**
   * Receives the updated weights in their dtype; may be `grad`. Null if the model computes with
   * `master`.
   */
  weight: Tensor | null;
  /**
   * Optimizer state by name. A state with `per` n (see StateTensor) has one element per n elements
   * of the range. With `per` null, it has the states of `places`, one after another.
   */
  state: Record<string, Tensor>;
  /**
   * By round: f64 sums of the parameters in `places`, one after another. See
   * Optimizer.sumsPerRound.
   */
  sums: readonly Tensor[];
  /** [4] f32: multiplier, apply, norm, finite. See GradientControl. */
  control: Tensor;
  /** The parameters of the range in order, whole or in part. Empty if the range is only padding. */
  places: readonly ParameterPlace[];
  /**
   * [places + 1] i64, in the same memory: the start of each parameter in the range, and the end of
   * the range.
   */
  starts: Tensor;
}

/** The number of an update, and the hyperparameters of every group. */
export interface UpdateSettings<Group extends ParamGroup = ParamGroup> {
  /** Number of the update, from 1. */
  readonly step: number;
  /** The groups with their values at this update. */
  readonly groups: readonly Readonly<Group>[];
}

/** The gradient of one range, with the step decision and the settings of its step. */
export interface StepGradient<Group extends ParamGroup = ParamGroup> {
  /**
   * Gradient in the dtype of the weights, times a scale. control[0] is the factor that removes the
   * scale.
   */
  grad: Tensor;
  /** [4] f32: see UpdateTensors.control. */
  control: Tensor;
  /** Number of the update, and the hyperparameters of all groups. */
  settings: UpdateSettings<Group>;
}

/** The tensors of one range for a pass that commits one step and speculates on the next. */
export interface SpeculationTensors {
  /** Index of the parameter group. */
  group: number;
  /** f32 weights of the committed step. */
  master: Tensor;
  /** Optimizer state by name. */
  state: Record<string, Tensor>;
  /** The step to commit: its update changes `master` and `state`. Null: no step. */
  previous: StepGradient | null;
  /** The step to speculate on: its update writes only `weight`. Null: no step. */
  next: StepGradient | null;
  /** Receives the weights of `next`, rounded; may be previous.grad. Not null if `next` is given. */
  weight: Tensor | null;
}

/**
 * A rule that updates f32 master weights from gradients, one range at a time. The engine calls it,
 * or StandaloneOptimizer. Implement this interface for your own optimizer.
 */
export interface Optimizer<Group extends ParamGroup = ParamGroup> extends StateKeeper {
  /** Name in configurations, checkpoints and errors. */
  readonly name: string;
  /** The parameter groups. Learning rates and other hyperparameters may change between steps. */
  readonly groups: Group[];
  /**
   * Returns the number of f64 sums over a parameter of this shape, for each round. Default: no
   * sums.
   */
  sumsPerRound?(group: number, shape: readonly number[]): readonly number[];
  /**
   * Returns whether update() rejects a part of a parameter in this group. Default: false, it
   * accepts any range. If ranks hold parts, the engine calls the methods of SummedOptimizer or
   * GatheredOptimizer instead of update().
   */
  needsWholeParameters?(group: number): boolean;
  /** Enqueues the update of one range. If control[1] is 0, the update writes only `weight`. */
  update(tensors: UpdateTensors, settings: UpdateSettings<Group>, kernels: UpdateKernels): void;
}

/**
 * An optimizer with measuring rounds. After each round, ranks that hold parts of a parameter add up
 * their sums.
 */
export interface MeasuringOptimizer<Group extends ParamGroup = ParamGroup>
  extends Optimizer<Group> {
  sumsPerRound(group: number, shape: readonly number[]): readonly number[];
  /**
   * Enqueues round `round`, from 0, for one range. Writes the sums over this range to sums[round],
   * and zeros if control[1] is 0. sums of earlier rounds are over whole parameters. May change the
   * state. Does nothing for parameters without sums in this round.
   */
  measure(
    tensors: UpdateTensors,
    settings: UpdateSettings<Group>,
    kernels: UpdateKernels,
    round: number,
  ): void;
}

/** An optimizer that is elementwise once the sums over whole parameters are known, such as LAMB. */
export interface SummedOptimizer<Group extends ParamGroup = ParamGroup>
  extends MeasuringOptimizer<Group> {
  /** Enqueues the final pass over one range. `tensors.sums` are over whole parameters. */
  applySums(tensors: UpdateTensors, settings: UpdateSettings<Group>, kernels: UpdateKernels): void;
}

/**
 * An optimizer that transforms the direction of whole parameters, such as Muon. It does so in each
 * group with sums.
 */
export interface GatheredOptimizer<Group extends ParamGroup = ParamGroup>
  extends MeasuringOptimizer<Group> {
  /** Returns the dtype of directions for gradients of dtype `grad`. */
  directionDType(grad: DType): DType;
  /**
   * Enqueues the computation of a range's directions [range]. `tensors.sums` are over whole
   * parameters.
   */
  direct(
    tensors: UpdateTensors,
    direction: Tensor,
    settings: UpdateSettings<Group>,
    kernels: UpdateKernels,
  ): void;
  /** Enqueues the transformation of a whole parameter's direction [numel], in place. */
  transform(direction: Tensor, shape: readonly number[], kernels: UpdateKernels): void;
  /**
   * Enqueues the final pass over one range of any group. `direction` is [range], or null for groups
   * without sums.
   */
  applyDirection(
    tensors: UpdateTensors,
    direction: Tensor | null,
    settings: UpdateSettings<Group>,
    kernels: UpdateKernels,
  ): void;
}

export function canSum(optimizer: Optimizer): optimizer is SummedOptimizer {
  return 'applySums' in optimizer;
}

export function canGather(optimizer: Optimizer): optimizer is GatheredOptimizer {
  return 'applyDirection' in optimizer;
}

/** An optimizer that can compute the weights of an update without changing its state. */
export interface SpeculativeOptimizer<Group extends ParamGroup = ParamGroup>
  extends Optimizer<Group> {
  /**
   * Enqueues the commit of `previous`, then the weights that `next` would give. At least one of
   * them is given. The results equal the results of two calls of update() bit for bit.
   */
  speculate(tensors: SpeculationTensors, kernels: UpdateKernels): void;
}

/**
 * Returns whether updates can be speculative. An optimizer with measuring rounds cannot, because
 * its update needs several passes.
 */
export function canSpeculate(optimizer: Optimizer): optimizer is SpeculativeOptimizer {
  return 'speculate' in optimizer && !('measure' in optimizer);
}
