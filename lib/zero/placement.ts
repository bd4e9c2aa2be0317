// Where optimizer state lives and how an update reaches the weights: the interface of resident and offloads.
import type { UpdateSettings, UpdateTensors } from '../optim/optimizer.js';
import type { UpdateKernels } from '../optim/update-kernels.js';
import type { Stream } from '../runtime/stream.js';
import type { Tensor } from '../tensor/index.js';
import type { GroupRange, Piece } from './layout.js';
import type { Partition } from './partition.js';
import type { UpdateSite } from './update-site.js';

/** The coming update: everything about it that is known before its gradients are. */
export interface UpdatePlan {
  readonly settings: UpdateSettings;
  /** The factor that the gradients carry: the loss scale, and more where accumulation was not divided out. */
  readonly gradientScale: number;
  /** Applies the optimizer's rule to one range with the given kernels. */
  apply(range: UpdateTensors, kernels: UpdateKernels): void;
}

/** The partition's weights change in the order of `stream`; it comes once per partition and update. */
export type Published = (partition: Partition, stream: Stream) => void;

export interface Placement {
  /** Takes over a partition: allocates its master weights and its state. */
  adopt(partition: Partition): void;
  /** Sets the master weights of a piece: [numel] f32 on the device. Reads `values` on the compute stream. */
  writeMaster(partition: Partition, piece: Piece, values: Tensor): void;
  /** The backward that completes the gradients of `plan` is about to start. */
  prepare(plan: UpdatePlan): void;
  /** The gradient of `partition` is complete once partition.ready has been passed. */
  gradReady(partition: Partition): void;
  /**
   * Updates every partition in forward order and reports each to `published` when its new weights have been enqueued.
   * `control` is on the device, written on the compute stream.
   */
  update(control: Tensor, plan: UpdatePlan, published: Published): void;
  /** Called before weights are read: later compute work sees the updated ones. */
  awaitWeights(partition: Partition): void;
  /** The master weights (name "master") or state of a piece; the caller releases it. */
  stateOf(partition: Partition, piece: Piece, name: string): Tensor;
  /**
   * The partition's gradient, from gradReady() to update(): [numel] in the unit's gradDtype, where it is kept; null where
   * there is none. Complete when this returns; the caller releases it.
   */
  gradOf(partition: Partition): Tensor | null;
  /** Gradient or state of the partition were changed from outside. */
  changed(partition: Partition): void;
  /** After master weights were changed from outside (a loaded checkpoint): refreshes the partition's weights. */
  refresh(partition: Partition): void;
  /** Waits until every update has reached the weights. */
  synchronize(): void;
  /** Bytes of state, by where they are. */
  readonly bytes: { device: number; host: number };
  dispose(): void;
}

/** A placement whose update() others can take apart, to share between its passes what ranks know of parameters. */
export interface OpenPlacement extends Placement {
  readonly site: UpdateSite;
  /** `control` of this step where kernels of the site read it, in their order. Once per update. */
  takeControl(control: Tensor): Tensor;
  /** Calls `body` with each range of the partition, in whose order kernels may read the gradient. Any number of times. */
  eachRange(
    partition: Partition,
    control: Tensor,
    body: (tensors: UpdateTensors, range: GroupRange) => void,
  ): void;
  /** The partition's new weights have been enqueued, nothing reads its gradient any more. Returns in whose order they change. */
  finish(partition: Partition): Stream;
}

export function isOpen(placement: Placement): placement is OpenPlacement {
  return 'eachRange' in placement;
}
