// The Optimizer interface: groups, declared state, and the update rule of a flat range.
import type { DType } from '../runtime/dtype.js';
import type { Tensor } from '../tensor/index.js';
import type { StateKeeper } from './declared-state.js';
import type { ParamGroup } from './param-groups.js';
import type { UpdateKernels } from './update-kernels.js';

/** The location of a parameter, whole or in part, in a range. Elements from the range's start. */
export interface ParameterPlace {
  /** Name of the parameter in its model. */
  readonly name: string;
  /** Shape of the whole parameter. */
  readonly shape: readonly number[];
  /** Its first element in the range, from the parameter's start. */
  readonly from: number;
  /** Offset of that element in the range. */
  readonly offset: number;
  /** Its elements in the range: fewer than in its shape if ranks hold parts. */
  readonly numel: number;
}

/**
 * A group's part of a unit, with parameters of the same kind of state: flat tensors in one memory.
 * Parameters start at multiples of 64 elements, or of a block. Master, gradient and state are zero
 * between them.
 */
export interface UpdateTensors {
  /** Index of the group. */
  group: number;
  /** f32 weights that the update changes. */
  master: Tensor;
  /** Gradient in the weights' dtype. control[0] undoes its scale. */
  grad: Tensor;
  /**
   * Receives the updated weights in their dtype; may be `grad`. Null if the model computes with
   * master.
   */
  weight: Tensor | null;
  /**
   * Optimizer state by name: see StateTensor. With `per` n, it has one element per n elements of
   * the range. Else it contains the states of `places`, one after another.
   */
  state: Record<string, Tensor>;
  /** By round: the f64 sums of `places`, one after another. See Optimizer.sumsPerRound. */
  sums: readonly Tensor[];
  /** [4] f32, see GradientControl: multiplier, apply, norm, finite. */
  control: Tensor;
  /** The parameters of the range, whole or in part, in order; empty for padding. */
  places: readonly ParameterPlace[];
  /**
   * First elements of the segments [places + 1] i64 in the same memory: the start of each
   * parameter, and the end of the range.
   */
  starts: Tensor;
}

/** The number of an update, and the hyperparameters of every group. */
export interface UpdateSettings<Group extends ParamGroup = ParamGroup> {
  /** Number of the update, from 1. */
  readonly step: number;
  /** Values at this update. */
  readonly groups: readonly Readonly<Group>[];
}

/** A range's gradient with its step decision and the settings of its step. */
export interface StepGradient<Group extends ParamGroup = ParamGroup> {
  /** The gradient in the weights' dtype. control[0] undoes its scale. */
  grad: Tensor;
  /** [4] f32: see UpdateTensors. */
  control: Tensor;
  /** Number of the update, and the hyperparameters of all groups. */
  settings: UpdateSettings<Group>;
}

/** The tensors of one range for a pass over two steps. */
export interface SpeculationTensors {
  /** Index of the group. */
  group: number;
  /** f32 weights. */
  master: Tensor;
  /** Optimizer state by name. */
  state: Record<string, Tensor>;
  /** The step to commit: changes master and state. */
  previous: StepGradient | null;
  /** The step to speculate on: only `weight` receives its result. */
  next: StepGradient | null;
  /** Updated weights, rounded; may be previous.grad. Not null with `next`. */
  weight: Tensor | null;
}

/**
 * A rule that updates f32 master weights from gradients, range by range. The owner of the state
 * calls it. Implement it for your own optimizer.
 */
export interface Optimizer<Group extends ParamGroup = ParamGroup> extends StateKeeper {
  /** Name in configurations, checkpoints and errors. */
  readonly name: string;
  /** The parameter groups. Learning rates and other hyperparameters may change between steps. */
  readonly groups: Group[];
  /** Returns the number of f64 sums per round over a parameter of this shape. Default: no sums. */
  sumsPerRound?(group: number, shape: readonly number[]): readonly number[];
  /**
   * Returns whether update() rejects a part of a parameter in this group. Default: it accepts any
   * range. If ranks hold parts, they call the methods of SummedOptimizer or GatheredOptimizer
   * instead.
   */
  needsWholeParameters?(group: number): boolean;
  /** Enqueues one update of one range. If control[1] is 0, only `weight` is written. */
  update(tensors: UpdateTensors, settings: UpdateSettings<Group>, kernels: UpdateKernels): void;
}

/** An update in rounds. After each round, ranks with parts of a parameter sum their sums. */
export interface MeasuringOptimizer<Group extends ParamGroup = ParamGroup>
  extends Optimizer<Group> {
  sumsPerRound(group: number, shape: readonly number[]): readonly number[];
  /**
   * Enqueues round `round`, from 0, for a range of parameters, whole or in part. Changes the state.
   * Writes the sums over this range to sums[round]; zeros if control[1] is 0. The sums of earlier
   * rounds are over whole parameters. Does nothing for parameters without sums in this round.
   */
  measure(
    tensors: UpdateTensors,
    settings: UpdateSettings<Group>,
    kernels: UpdateKernels,
    round: number,
  ): void;
}

/** A rule that is elementwise after sums over whole parameters are known, such as LAMB. */
export interface SummedOptimizer<Group extends ParamGroup = ParamGroup>
  extends MeasuringOptimizer<Group> {
  /** Enqueues the last pass, with all sums over whole parameters. */
  applySums(tensors: UpdateTensors, settings: UpdateSettings<Group>, kernels: UpdateKernels): void;
}

/**
 * A rule that transforms the direction of a whole parameter, such as Muon, in each group with sums.
 */
export interface GatheredOptimizer<Group extends ParamGroup = ParamGroup>
  extends MeasuringOptimizer<Group> {
  /** Returns the dtype of directions for gradients of dtype `grad`. */
  directionDType(grad: DType): DType;
  /** Enqueues the directions [range] of a range with sums over whole parameters. */
  direct(
    tensors: UpdateTensors,
    direction: Tensor,
    settings: UpdateSettings<Group>,
    kernels: UpdateKernels,
  ): void;
  /** Enqueues the transformation of a whole parameter's direction [numel], in place. */
  transform(direction: Tensor, shape: readonly number[], kernels: UpdateKernels): void;
  /**
   * Enqueues the last pass over a range of any group. `direction`: [range], or null without sums.
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

/** An optimizer that can compute an update without storing its state. */
export interface SpeculativeOptimizer<Group extends ParamGroup = ParamGroup>
  extends Optimizer<Group> {
  /**
   * Enqueues the commit of `previous`, then the weights that `next` would give. The bits equal two
   * calls of update(). At least one of the two is present.
   */
  speculate(tensors: SpeculationTensors, kernels: UpdateKernels): void;
}

/**
 * Returns whether updates can be speculative. An update in rounds cannot: it needs several passes.
 */
export function canSpeculate(optimizer: Optimizer): optimizer is SpeculativeOptimizer {
  return 'speculate' in optimizer && !('measure' in optimizer);
}
