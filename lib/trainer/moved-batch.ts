// BatchMover: moves batches from the host to the engine's device.

import { createUploader, type Uploader } from '../data/upload.js';
import type { Device } from '../runtime/device.js';
import { isPlainObject } from '../runtime/is-object.js';
import { required } from '../runtime/required.js';
import { Tensor } from '../tensor/index.js';
import type { MicroBatch } from './micro-batch.js';

/** Moves batches to one device through pinned memory, without waiting for the device. */
export class BatchMover {
  private readonly uploader: Uploader;

  constructor(private readonly device: Device) {
    this.uploader = createUploader(device);
  }

  /** Returns `micro` with its tensors on the device. Disposes of the original tensors. */
  move<Batch>(micro: MicroBatch<Batch>): MicroBatch<Batch> {
    const tensors = listTensors(micro);
    const others = tensors.filter((tensor) => tensor.device !== this.device);
    if (others.length === 0) return micro;
    const uploaded = this.uploader.upload(
      others.map((tensor) => ({
        dtype: tensor.dtype,
        shape: [...tensor.shape],
        values: tensor.toRaw(),
      })),
    );
    const copies = new Map(others.map((tensor, i) => [tensor, required(uploaded[i])]));
    const result = replaceTensors(micro, (tensor) => copies.get(tensor) ?? tensor);
    for (const tensor of others) tensor.dispose();
    return result;
  }

  /** Frees staging memory. */
  dispose(): void {
    this.uploader.dispose();
  }
}

/** Disposes of the tensors of a micro-batch. */
export function disposeMicroBatch(micro: MicroBatch<unknown>): void {
  for (const tensor of listTensors(micro)) if (!tensor.isDisposed) tensor.dispose();
}

/** Returns the tensors of a micro-batch, each once. */
function listTensors({ batch, targets }: MicroBatch<unknown>): Tensor[] {
  const tensors = new Set<Tensor>();
  replaceTensors({ batch, targets }, (tensor) => {
    tensors.add(tensor);
    return tensor;
  });
  return [...tensors];
}

/** Returns a copy of lists and plain objects. `by` replaces each tensor. */
function replaceTensors<Value>(value: Value, by: (tensor: Tensor) => Tensor): Value {
  const walk = (part: unknown): unknown => {
    if (part instanceof Tensor) return by(part);
    if (Array.isArray(part)) return part.map(walk);
    if (!isPlainObject(part)) return part;
    return Object.fromEntries(Object.entries(part).map(([key, inner]) => [key, walk(inner)]));
  };
  return walk(value) as Value;
}
