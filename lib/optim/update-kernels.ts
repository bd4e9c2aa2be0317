// The fused update kernels an optimizer is written against, on the device or on host threads.
import { Buffer } from '../runtime/buffer.js';
import { type DType, dtypeSize } from '../runtime/dtype.js';
import * as kernels from '../runtime/kernels.generated.js';
import type { Stream } from '../runtime/stream.js';
import { held, Tensor } from '../tensor/index.js';
import { deviceOps, hostOps, type UpdateOps } from './update-ops.generated.js';

/**
 * The fused rules, and what else an update is made of; the same arithmetic, bit for bit, in every
 * implementation.
 */
export interface UpdateKernels extends UpdateOps {
  /** Copies, converting. */
  copy(args: kernels.CopyArgs): void;
  /** A product of matrices. */
  matmul(args: kernels.MatmulArgs): void;
  /** Scales and shifts. */
  scale(args: kernels.ScaleArgs): void;
  /** Writes one value to every element. */
  fill(args: kernels.FillArgs): void;
  /**
   * A flat tensor of undefined contents in the memory of `like`. The caller releases it as soon as
   * the ops that use it are enqueued; on host threads that waits for them.
   */
  workspace(like: Tensor, numel: number, dtype: DType): Tensor;
  /** Waits for the updates enqueued so far and copies a flat f32 tensor that they wrote. */
  read(tensor: Tensor): Float32Array;
}

/**
 * Runs on the device, in the order of `stream`; default: its compute stream, in whose order
 * workspaces are returned, so that rules that need some run nowhere else.
 */
export function deviceKernels(stream?: Stream): UpdateKernels {
  return {
    ...deviceOps(stream),
    copy: (args) => kernels.copy(args, stream),
    matmul: (args) => kernels.matmul(args, stream),
    scale: (args) => kernels.scale(args, stream),
    fill: (args) => kernels.fill(args, stream),
    workspace: ({ device }, numel, dtype) => held(() => Tensor.empty([numel], dtype, device)),
    read: (tensor) => read(tensor, stream ?? tensor.device.compute),
  };
}

/** Runs on host threads, in the order of `stream`, over pinned memory. */
export function hostKernels(stream: Stream): UpdateKernels {
  return {
    ...hostOps(stream),
    copy: (args) => kernels.copyOnHost(args, stream),
    matmul: (args) => kernels.matmulOnHost(args, stream),
    scale: (args) => kernels.scaleOnHost(args, stream),
    fill: (args) => kernels.fillOnHost(args, stream),
    workspace: ({ device }, numel, dtype) =>
      held(
        () => new Tensor(Buffer.allocatePinned(device, numel * dtypeSize(dtype)), dtype, [numel]),
      ),
    read: (tensor) => read(tensor, stream),
  };
}

function read(tensor: Tensor, stream: Stream): Float32Array {
  const values = new Float32Array(tensor.numel);
  tensor.buffer.read(tensor.offset * values.BYTES_PER_ELEMENT, values, stream);
  return values;
}
