// Measures the peak device memory of a function above the present use.
import type { Device } from '../../lib/runtime/device.js';
import { scope } from '../../lib/tensor/index.js';

export function peakOf(device: Device, body: () => void): number {
  device.synchronize();
  device.resetPeaks();
  const before = device.memory.inUse;
  scope(body);
  return device.memory.peakInUse - before;
}
