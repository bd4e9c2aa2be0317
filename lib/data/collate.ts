// Stacks a list of samples into a batch with the same structure.
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

/** A batch of samples of one structure: every leaf is a tensor of shape [B, ...]. */
export type Batched<Sample> = unknown extends Sample
  ? unknown
  : Sample extends number | TypedArray | Tensor
    ? Tensor
    : { [K in keyof Sample]: Batched<Sample[K]> };

/**
 * Stacks along a new first dim: numbers (f32), typed arrays (their own dtype) and tensors; arrays
 * and plain objects of these, at any depth, are batched part by part. The caller owns the tensors,
 * which are on `device`. Throws DS_DATA if samples differ in structure or length, DS_ARGUMENT if
 * `samples` is not a list of samples, DS_DEVICE.
 */
export function collate<Sample>(
  samples: readonly Sample[],
  device: Device | string = 'cpu',
): Batched<Sample> {
  if (!Array.isArray(samples)) throw valueError('collate', 'a list of samples', samples);
  const target = findDevice(device);
  return collateWith(samples, new DirectUpload(target), target) as Batched<Sample>;
}

/** Stacks samples as collate() does, through an uploader of `device`. */
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

/** Uploads a batch that was stacked on the host, and returns its tensors in its structure. */
export function uploadBatch({ structure, arrays }: HostBatch, uploader: Uploader): unknown {
  return assembleStructure(structure, uploader.upload(arrays));
}

function stackTensors(column: Column, device: Device): Tensor {
  requireAll(column, 'a tensor', (x) => x instanceof Tensor);
  return noGrad(() => scope(() => stack(column.items as Tensor[]).to(device)));
}
