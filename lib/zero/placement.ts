// Where optimizer state lives and how an update reaches the weights: the interface of resident and offloads.
import type { UpdateSettings, UpdateTensors } from '../optim/optimizer.js';
import type { UpdateKernels } from '../optim/update-kernels.js';
import type { Tensor } from '../tensor/index.js';
import type { Slot } from './layout.js';
import type { Unit } from './unit.js';

/** The coming update: everything about it that is known before its gradients are. */
export interface UpdatePlan {
  readonly settings: UpdateSettings;
  /** The factor that the gradients carry: the loss scale, and more where accumulation was not divided out. */
  readonly gradientScale: number;
  /** Applies the optimizer's rule to one range with the given kernels. */
  apply(range: UpdateTensors, kernels: UpdateKernels): void;
}

export interface Placement {
  /** Takes over a unit: creates its master weights (from `values`, per slot) and its state. */
  adopt(unit: Unit): void;
  /** The backward that completes the gradients of `plan` is about to start. */
  prepare(plan: UpdatePlan): void;
  /** The last micro-batch's gradient of `unit` is complete on the compute stream. */
  gradReady(unit: Unit): void;
  /** Updates every unit in forward order. `control` is on the device, written on the compute stream. */
  update(control: Tensor, plan: UpdatePlan): void;
  /** Called before a unit's weights are read: later compute work sees the updated weights. */
  awaitWeights(unit: Unit): void;
  /** The master weights (name "master") or a state tensor of one parameter; the caller releases it. */
  stateOf(unit: Unit, slot: Slot, name: string): Tensor;
  /** After master weights were changed from outside (a loaded checkpoint): refreshes the weights. */
  publish(unit: Unit): void;
  /** Waits until every update has reached the weights. */
  synchronize(): void;
  /** Bytes of state, by where they are. */
  readonly bytes: { device: number; host: number };
  dispose(): void;
}
