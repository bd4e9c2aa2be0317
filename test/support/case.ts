// A test as data: one body that runs on every device, in jest on the CPU and in plain Node on a
// GPU.
import { type Device, probeGpus } from '../../lib/runtime/device.js';

/** Fails by throwing. `run` leaves no tensors behind. */
export interface Case {
  name: string;
  run(device: Device): void | Promise<void>;
  /** Number of GPUs, one per rank. Default: 1. The CPU counts as any number. */
  gpus?: number;
  /** Why the case does not apply to `device`; null runs it. Skips are counted, never silent. */
  skip?(device: Device): string | null;
}

/** The reason why `device` and the other GPUs cannot run a case, or null. */
export function whySkipped(test: Case, device: Device): string | null {
  const gpus = test.gpus ?? 1;
  const few = device.kind !== 'cpu' && probeGpus().deviceCount < gpus;
  return few ? `needs ${gpus} GPUs` : (test.skip?.(device) ?? null);
}
