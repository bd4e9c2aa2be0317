// What the engine needs of an optimizer: its groups, the state it keeps and its rule for one flat range.
import { DsError } from '../errors.js';
import type { Tensor } from '../tensor/index.js';
import type { ParamGroup } from './param-groups.js';
import type { UpdateKernels } from './update-kernels.js';

/** Where one parameter lies in a range, in elements from the range's start. */
export interface ParameterPlace {
  readonly name: string;
  readonly shape: readonly number[];
  readonly offset: number;
  readonly numel: number;
}

/**
 * One group's part of one unit: flat tensors of equal length in one memory. Parameters start at multiples of 64
 * elements; master, gradient and state are zero between them.
 */
export interface UpdateTensors {
  /** Index of the group. */
  group: number;
  /** f32 weights that the update changes. */
  master: Tensor;
  /** Gradient in the weights' dtype, scaled as control[0] undoes. */
  grad: Tensor;
  /** Receives the updated weights in their dtype; it may be `grad`. Null when master is what the model computes with. */
  weight: Tensor | null;
  /** f32 optimizer state by name. */
  state: Record<string, Tensor>;
  /** [places] f32 by name, see Optimizer.initialScalars. */
  scalars: Record<string, Tensor>;
  /** [4] f32, see GradientControl: multiplier, apply, norm, finite. */
  control: Tensor;
  /** The parameters of the range, in order; none where only part of a parameter is here. */
  places: readonly ParameterPlace[];
  /** [places + 1] i64 in the same memory: where each parameter starts, and where the range ends. */
  starts: Tensor;
}

/** An update's number, from 1, and the hyperparameters of every group at it. */
export interface UpdateSettings<Group extends ParamGroup = ParamGroup> {
  readonly step: number;
  readonly groups: readonly Readonly<Group>[];
}

/** A range's gradient, the verdict on it, and the settings of the step that it belongs to. */
export interface StepGradient<Group extends ParamGroup = ParamGroup> {
  grad: Tensor;
  control: Tensor;
  settings: UpdateSettings<Group>;
}

/** The tensors of one range for a pass over two steps. */
export interface SpeculationTensors {
  group: number;
  master: Tensor;
  state: Record<string, Tensor>;
  /** The step to commit: master and state change. */
  previous: StepGradient | null;
  /** The step to try out on top: only `weight` receives its result. */
  next: StepGradient | null;
  /** Updated weights, rounded; it may be previous.grad. Not null with `next`. */
  weight: Tensor | null;
}

export interface Optimizer<Group extends ParamGroup = ParamGroup> {
  readonly name: string;
  readonly groups: Group[];
  /** f32 tensors kept per parameter of a group beside the master weights: names, and the value that each starts with. */
  initialState(group: number): Readonly<Record<string, number>>;
  /** f32 scalars kept per parameter, which no checkpoint holds: names, and the value that each starts with. */
  initialScalars?(group: number): Readonly<Record<string, number>>;
  /** Whether update() refuses a part of a parameter of this group. Default: it takes any range. */
  needsWholeParameters?(group: number): boolean;
  /** Enqueues one update of one range. When control[1] is 0 nothing changes but `weight`, which is written anyway. */
  update(tensors: UpdateTensors, settings: UpdateSettings<Group>, kernels: UpdateKernels): void;
}

/** An optimizer that can try an update out without storing it. */
export interface SpeculativeOptimizer<Group extends ParamGroup = ParamGroup>
  extends Optimizer<Group> {
  /**
   * Enqueues the commit of `previous`, then the weights that `next` would give: the bits of update() followed by
   * update(). At least one of the two is present.
   */
  speculate(tensors: SpeculationTensors, kernels: UpdateKernels): void;
}

export function canSpeculate(optimizer: Optimizer): optimizer is SpeculativeOptimizer {
  return 'speculate' in optimizer;
}

/** Throws DS_CONFIG for a range that holds part of a parameter, where the rule of `optimizer` needs all of it. */
export function requirePlaces(optimizer: string, { places, master }: UpdateTensors): void {
  if (places.length > 0 || master.numel === 0) return;
  throw new DsError({
    code: 'DS_CONFIG',
    op: optimizer,
    expected: 'whole parameters in every range that it updates',
    got: 'a part of a parameter, because ZeRO shards the optimizer state over the ranks',
    hint: 'Train on one rank or with ZeRO stage 0, or with an optimizer that works by element, such as AdamW.',
  });
}
