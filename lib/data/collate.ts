// Stacks a list of samples into a batch with the same structure.
import { type Device, device as findDevice } from '../runtime/device.js';
import type { TypedArray } from '../runtime/dtype.js';
import { valueError } from '../runtime/input-errors.js';
import { noGrad, scope, stack, Tensor } from '../tensor/index.js';
import { type HostArray, type HostBatch, stackColumn } from './host-array.js';
import { assemble, type Column, columnsOf, isNumeric, requireAll } from './structure.js';
import { DirectUpload, type Uploader } from './upload.js';

/** Samples of one structure, with a tensor of shape [B, ...] in the place of every leaf. */
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

/** collate() through an uploader of `device`. */
export function collateWith(
  samples: readonly unknown[],
  uploader: Uploader,
  device: Device,
): unknown {
  const { structure, columns } = columnsOf(samples, (x) => isNumeric(x) || x instanceof Tensor);
  const arrays: HostArray[] = [];
  const leaves: (Tensor | null)[] = columns.map((column) => {
    if (column.items[0] instanceof Tensor) return stackTensors(column, device);
    arrays.push(stackColumn(column));
    return null;
  });
  const uploaded = uploader.upload(arrays).values();
  const tensors = leaves.map((leaf) => leaf ?? uploaded.next().value);
  return assemble(structure, tensors);
}

/** The tensors of a batch that was stacked on the host. */
export function uploadBatch({ structure, arrays }: HostBatch, uploader: Uploader): unknown {
  return assemble(structure, uploader.upload(arrays));
}

function stackTensors(column: Column, device: Device): Tensor {
  requireAll(column, 'a tensor', (x) => x instanceof Tensor);
  return noGrad(() => scope(() => stack(column.items as Tensor[]).to(device)));
}
