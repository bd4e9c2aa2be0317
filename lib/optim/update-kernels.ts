// The fused update kernels an optimizer is written against, on the device or on host threads.
import * as kernels from '../runtime/kernels.generated.js';
import type { Stream } from '../runtime/stream.js';

/** One method per fused rule; the same arithmetic, bit for bit, in every implementation. */
export interface UpdateKernels {
  adamW(args: kernels.AdamWArgs): void;
  adamWSpeculate(args: kernels.AdamWSpeculateArgs): void;
  sgd(args: kernels.SgdArgs): void;
  adagrad(args: kernels.AdagradArgs): void;
  lion(args: kernels.LionArgs): void;
}

/** Runs on the device's compute stream. */
export function deviceKernels(): UpdateKernels {
  return {
    adamW: (args) => kernels.adamW(args),
    adamWSpeculate: (args) => kernels.adamWSpeculate(args),
    sgd: (args) => kernels.sgd(args),
    adagrad: (args) => kernels.adagrad(args),
    lion: (args) => kernels.lion(args),
  };
}

/** Runs on host threads, in the order of `stream`, over pinned memory. */
export function hostKernels(stream: Stream): UpdateKernels {
  return {
    adamW: (args) => kernels.adamWOnHost(args, stream),
    adamWSpeculate: (args) => kernels.adamWSpeculateOnHost(args, stream),
    sgd: (args) => kernels.sgdOnHost(args, stream),
    adagrad: (args) => kernels.adagradOnHost(args, stream),
    lion: (args) => kernels.lionOnHost(args, stream),
  };
}
