// A test as data: one body that runs on every device, in jest on the CPU and in plain Node on a
// GPU.
import type { Device } from '../../lib/runtime/device.js';

/** Fails by throwing. `run` leaves no tensors behind. */
export interface Case {
  name: string;
  run(device: Device): void | Promise<void>;
  /** Why the case does not apply to `device`; null runs it. Skips are counted, never silent. */
  skip?(device: Device): string | null;
}
