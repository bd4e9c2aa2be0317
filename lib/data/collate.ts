// Stacks samples into a batch with the structure of a sample.
import { type Device, device as findDevice } from '../runtime/device.js';
import type { TypedArray } from '../runtime/dtype.js';
import { valueError } from '../runtime/input-errors.js';
import { noGrad, scope, stack, Tensor } from '../tensor/index.js';
import { type HostArray, type HostBatch, stackColumn } from './host-array.js';
import {
  assembleStructure,
  type Column,
  isNumeric,
  requireAll,
  splitIntoColumns,
} from './structure.js';
import { DirectUpload, type Uploader } from './upload.js';

/**
 * The batch of samples with one structure. Every number, typed array or tensor becomes a tensor
 * [B, ...].
 */
export type Batched<Sample> = unknown extends Sample
  ? unknown
  : Sample extends number | TypedArray | Tensor
    ? Tensor
    : { [K in keyof Sample]: Batched<Sample[K]> };

/**
 * Stacks samples along a new first dim and returns the batch on `device`. Numbers become f32; typed
 * arrays and tensors keep their dtype. Arrays and plain objects, at any depth, are stacked field by
 * field. The caller owns the tensors. Throws DS_DATA if samples differ in structure or length,
 * DS_ARGUMENT if `samples` is not a list, DS_DEVICE for an unknown device.
 */
export function collate<Sample>(
  samples: readonly Sample[],
  device: Device | string = 'cpu',
): Batched<Sample> {
  if (!Array.isArray(samples)) throw valueError('collate', 'a list of samples', samples);
  const target = findDevice(device);
  return collateWith(samples, new DirectUpload(target), target) as Batched<Sample>;
}

/** Stacks samples as collate() does. `uploader` copies them to `device`. */
export function collateWith(
  samples: readonly unknown[],
  uploader: Uploader,
  device: Device,
): unknown {
  const { structure, columns } = splitIntoColumns(
    samples,
    (x) => isNumeric(x) || x instanceof Tensor,
  );
  const arrays: HostArray[] = [];
  const leaves: (Tensor | null)[] = columns.map((column) => {
    if (column.items[0] instanceof Tensor) return stackTensors(column, device);
    arrays.push(stackColumn(column));
    return null;
  });
  const uploaded = uploader.upload(arrays).values();
  const tensors = leaves.map((leaf) => leaf ?? uploaded.next().value);
  return assembleStructure(structure, tensors);
}

/**
 * Copies a batch that was stacked on the host to the device, and returns its tensors in its
 * structure.
 */
export function uploadBatch({ structure, arrays }: HostBatch, uploader: Uploader): unknown {
  return assembleStructure(structure, uploader.upload(arrays));
}

function stackTensors(column: Column, device: Device): Tensor {
  requireAll(column, 'a tensor', (x) => x instanceof Tensor);
  return noGrad(() => scope(() => stack(column.items as Tensor[]).to(device)));
}
