// What the engine needs of an optimizer: its groups, the state it keeps and its rule for one flat
// range.
import type { DType } from '../runtime/dtype.js';
import type { Tensor } from '../tensor/index.js';
import type { StateKeeper } from './declared-state.js';
import type { ParamGroup } from './param-groups.js';
import type { UpdateKernels } from './update-kernels.js';

/** Where one parameter, or a part of one, lies in a range, in elements from the range's start. */
export interface ParameterPlace {
  /** Of the parameter in its model. */
  readonly name: string;
  /** Of the whole parameter. */
  readonly shape: readonly number[];
  /** Its first element that is here, counted from its own first. */
  readonly from: number;
  /** Where that lies in the range. */
  readonly offset: number;
  /** Elements of it in the range: fewer than its shape has where ranks hold parts of it. */
  readonly numel: number;
}

/**
 * One group's part of one unit, of parameters that keep the same kind of state: flat tensors in one
 * memory. Parameters start at multiples of 64 elements, or of a block; master, gradient and state
 * are zero between them.
 */
export interface UpdateTensors {
  /** Index of the group. */
  group: number;
  /** f32 weights that the update changes. */
  master: Tensor;
  /** Gradient in the weights' dtype, scaled as control[0] undoes. */
  grad: Tensor;
  /**
   * Receives the updated weights in their dtype; it may be `grad`. Null when master is what the
   * model computes with.
   */
  weight: Tensor | null;
  /**
   * Optimizer state by name, see StateTensor. With `per` n it has an element for each n of the
   * range; else it is that of each of `places`, one after the other.
   */
  state: Record<string, Tensor>;
  /**
   * By round, the f64 sums of each of `places`, one after the other: see Optimizer.sumsPerRound.
   */
  sums: readonly Tensor[];
  /** [4] f32, see GradientControl: multiplier, apply, norm, finite. */
  control: Tensor;
  /** The parameters of the range, and parts of them, in order; none in a range of padding. */
  places: readonly ParameterPlace[];
  /** [places + 1] i64 in the same memory: where each parameter starts, and where the range ends. */
  starts: Tensor;
}

/** An update's number, from 1, and the hyperparameters of every group at it. */
export interface UpdateSettings<Group extends ParamGroup = ParamGroup> {
  /** From 1. */
  readonly step: number;
  /** As the optimizer has them at this update. */
  readonly groups: readonly Readonly<Group>[];
}

/** A range's gradient, the step decision on it, and the settings of the step that it belongs to. */
export interface StepGradient<Group extends ParamGroup = ParamGroup> {
  /** In the weights' dtype, scaled as control[0] undoes. */
  grad: Tensor;
  /** [4] f32, see UpdateTensors. */
  control: Tensor;
  /** The number of the update, and its hyperparameters. */
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
  /** The step to commit: master and state change. */
  previous: StepGradient | null;
  /** The step to try out on top: only `weight` receives its result. */
  next: StepGradient | null;
  /** Updated weights, rounded; it may be previous.grad. Not null with `next`. */
  weight: Tensor | null;
}

/**
 * A rule that updates f32 master weights from gradients, range by range; whoever holds the state
 * calls it. Implement it for an optimizer of your own.
 */
export interface Optimizer<Group extends ParamGroup = ParamGroup> extends StateKeeper {
  /** What it is called in configurations, checkpoints and errors. */
  readonly name: string;
  /** Its parameter groups; rates and other hyperparameters may be changed between steps. */
  readonly groups: Group[];
  /**
   * How many f64 sums over a parameter of this shape the rule works with, by the round that makes
   * them. Default: none.
   */
  sumsPerRound?(group: number, shape: readonly number[]): readonly number[];
  /**
   * Whether update() refuses a part of a parameter of this group. Default: it takes any range.
   * Ranks that hold parts take a SummedOptimizer or a GatheredOptimizer through its halves instead.
   */
  needsWholeParameters?(group: number): boolean;
  /**
   * Enqueues one update of one range. When control[1] is 0 nothing changes but `weight`, which is
   * written anyway.
   */
  update(tensors: UpdateTensors, settings: UpdateSettings<Group>, kernels: UpdateKernels): void;
}

/**
 * An update in rounds, after each of which ranks that hold parts of a parameter add up their sums.
 */
export interface MeasuringOptimizer<Group extends ParamGroup = ParamGroup>
  extends Optimizer<Group> {
  sumsPerRound(group: number, shape: readonly number[]): readonly number[];
  /**
   * Enqueues round number `round`, from 0, for a range of whole parameters or parts: the state
   * changes, sums[round] receives those over what is here, zeros when control[1] is 0. The sums of
   * earlier rounds are over whole parameters. Does nothing for parameters without sums in that
   * round.
   */
  measure(
    tensors: UpdateTensors,
    settings: UpdateSettings<Group>,
    kernels: UpdateKernels,
    round: number,
  ): void;
}

/** A rule that is by element once it knows sums over whole parameters, such as LAMB's. */
export interface SummedOptimizer<Group extends ParamGroup = ParamGroup>
  extends MeasuringOptimizer<Group> {
  /** Enqueues the last pass, with all sums over whole parameters. */
  applySums(tensors: UpdateTensors, settings: UpdateSettings<Group>, kernels: UpdateKernels): void;
}

/**
 * A rule that transforms the direction of a whole parameter, such as Muon's: in each group that has
 * sums.
 */
export interface GatheredOptimizer<Group extends ParamGroup = ParamGroup>
  extends MeasuringOptimizer<Group> {
  /** Of directions, for gradients of dtype `grad`. */
  directionDType(grad: DType): DType;
  /** Enqueues the directions [range] of a range with sums, with these over whole parameters. */
  direct(
    tensors: UpdateTensors,
    direction: Tensor,
    settings: UpdateSettings<Group>,
    kernels: UpdateKernels,
  ): void;
  /** Enqueues the transformation of a whole parameter's direction [numel], in place. */
  transform(direction: Tensor, shape: readonly number[], kernels: UpdateKernels): void;
  /**
   * Enqueues the last pass over a range of any group; `direction` [range] is null where it has no
   * sums.
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

/** An optimizer that can try an update out without storing it. */
export interface SpeculativeOptimizer<Group extends ParamGroup = ParamGroup>
  extends Optimizer<Group> {
  /**
   * Enqueues the commit of `previous`, then the weights that `next` would give: the bits of
   * update() followed by update(). At least one of the two is present.
   */
  speculate(tensors: SpeculationTensors, kernels: UpdateKernels): void;
}

/** An update in rounds cannot be tried out in one pass. */
export function canSpeculate(optimizer: Optimizer): optimizer is SpeculativeOptimizer {
  return 'speculate' in optimizer && !('measure' in optimizer);
}
