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

export interface Optimizer {
  readonly name: string;
  /** f32 tensors kept per parameter, in addition to the master weights. Starts as zeros. */
  readonly stateNames: readonly string[];
  readonly groups: ParamGroup[];
  /** Enqueues update number `step` (from 1) of one range of `group`. */
  update(tensors: UpdateTensors, group: number, step: number, kernels: UpdateKernels): void;
}
