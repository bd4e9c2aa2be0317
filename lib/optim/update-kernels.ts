// UpdateKernels: the ops of update rules, either on the device or on CPU threads.
import { Buffer } from '../runtime/buffer.js';
import { type DType, dtypeSize } from '../runtime/dtype.js';
import * as kernels from '../runtime/kernels.generated.js';
import type { Stream } from '../runtime/stream.js';
import { held, Tensor } from '../tensor/index.js';
import { deviceOps, hostOps, type UpdateOps } from './update-ops.generated.js';

/**
 * The ops that update rules call: fused rules, and a few others. All implementations give equal
 * bits.
 */
export interface UpdateKernels extends UpdateOps {
  /** Copies, and converts to the dtype of the output. */
  copy(args: kernels.CopyArgs): void;
  /** A matrix product. */
  matmul(args: kernels.MatmulArgs): void;
  /** Multiplies by a factor and adds a constant. */
  scale(args: kernels.ScaleArgs): void;
  /** Fills a tensor with one value. */
  fill(args: kernels.FillArgs): void;
  /**
   * Returns an uninitialized flat tensor in the memory of `like`. The caller releases it after it
   * has enqueued the ops that use it. On CPU threads, the release waits for these ops.
   */
  workspace(like: Tensor, numel: number, dtype: DType): Tensor;
  /** Waits for the enqueued updates. Returns a copy of a flat f32 tensor. */
  read(tensor: Tensor): Float32Array;
}

/**
 * Returns ops that run on the device in the order of `stream`. Default: its compute stream.
 * Workspaces are freed in the order of the compute stream, so rules that use them need the default.
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

/**
 * Returns ops that run on CPU threads in the order of `stream`. Their tensors must be in pinned
 * memory.
 */
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
