// Moves batches from the host to the engine's device.

import { createUploader, type Uploader } from '../data/upload.js';
import type { Device } from '../runtime/device.js';
import { isPlainObject } from '../runtime/is-object.js';
import { required } from '../runtime/required.js';
import { Tensor } from '../tensor/index.js';
import type { MicroBatch } from './micro-batch.js';

/** Moves batches to one device, through pinned memory, without waiting for it. */
export class BatchMover {
  private readonly uploader: Uploader;

  constructor(private readonly device: Device) {
    this.uploader = createUploader(device);
  }

  /** Returns `micro` with its tensors on the device, and disposes of the originals. */
  move<Batch>(micro: MicroBatch<Batch>): MicroBatch<Batch> {
    const here = tensorsOf(micro);
    const away = here.filter((tensor) => tensor.device !== this.device);
    if (away.length === 0) return micro;
    const uploaded = this.uploader.upload(
      away.map((tensor) => ({
        dtype: tensor.dtype,
        shape: [...tensor.shape],
        values: tensor.toRaw(),
      })),
    );
    const copies = new Map(away.map((tensor, i) => [tensor, required(uploaded[i])]));
    const result = replaceValue(micro, (tensor) => copies.get(tensor) ?? tensor);
    for (const tensor of away) tensor.dispose();
    return result;
  }

  /** Frees staging memory. */
  dispose(): void {
    this.uploader.dispose();
  }
}

/** Lets a micro-batch's tensors go. */
export function discard(micro: MicroBatch<unknown>): void {
  for (const tensor of tensorsOf(micro)) if (!tensor.isDisposed) tensor.dispose();
}

/** Each once. */
function tensorsOf({ batch, targets }: MicroBatch<unknown>): Tensor[] {
  const found = new Set<Tensor>();
  replaceValue({ batch, targets }, (tensor) => {
    found.add(tensor);
    return tensor;
  });
  return [...found];
}

/** A copy of lists and plain objects with each tensor replaced. */
function replaceValue<Value>(value: Value, by: (tensor: Tensor) => Tensor): Value {
  const walk = (part: unknown): unknown => {
    if (part instanceof Tensor) return by(part);
    if (Array.isArray(part)) return part.map(walk);
    if (!isPlainObject(part)) return part;
    return Object.fromEntries(Object.entries(part).map(([key, inner]) => [key, walk(inner)]));
  };
  return walk(value) as Value;
}
