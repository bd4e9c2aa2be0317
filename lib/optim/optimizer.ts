// What the engine needs of an optimizer: its groups, the state it keeps and its rule for one flat range.
import type { Tensor } from '../tensor/index.js';
import type { UpdateKernels } from './update-kernels.js';

/** Hyperparameters of one group of parameters. */
export interface ParamGroup {
  lr: number;
  betas: readonly [number, number];
  eps: number;
  weightDecay: number;
}

/** The tensors of one range, all flat and of equal length, in one memory. */
export interface UpdateTensors {
  master: Tensor;
  grad: Tensor;
  weight: Tensor | null;
  state: Record<string, Tensor>;
  control: Tensor;
}

/** An update's number, from 1, and the hyperparameters of every group at it. */
export interface UpdateSettings {
  readonly step: number;
  readonly groups: readonly Readonly<ParamGroup>[];
}

/** A range's gradient, the verdict on it, and the settings of the step that it belongs to. */
export interface StepGradient {
  grad: Tensor;
  control: Tensor;
  settings: UpdateSettings;
}

/** The tensors of one range for a pass over two steps. */
export interface SpeculationTensors {
  master: Tensor;
  state: Record<string, Tensor>;
  /** The step to commit: master and state change. */
  previous: StepGradient | null;
  /** The step to try out on top: only `weight` receives its result. */
  next: StepGradient | null;
  /** Updated weights, rounded; it may be previous.grad. Not null with `next`. */
  weight: Tensor | null;
}

export interface Optimizer {
  readonly name: string;
  /** f32 tensors kept per parameter, in addition to the master weights. Starts as zeros. */
  readonly stateNames: readonly string[];
  readonly groups: ParamGroup[];
  /** Enqueues update number `step` (from 1) of one range of `group`. */
  update(tensors: UpdateTensors, group: number, step: number, kernels: UpdateKernels): void;
}

/** An optimizer that can try an update out without storing it. */
export interface SpeculativeOptimizer extends Optimizer {
  /**
   * Enqueues the commit of `previous`, then the weights that `next` would give: the bits of update() followed by
   * update(). At least one of the two is present.
   */
  speculate(tensors: SpeculationTensors, group: number, kernels: UpdateKernels): void;
}

export function canSpeculate(optimizer: Optimizer): optimizer is SpeculativeOptimizer {
  return 'speculate' in optimizer;
}
