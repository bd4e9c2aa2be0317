// Graphs: recorded work of a device's compute stream that runs again with one call.
import { addon } from './addon.js';
import type { Device } from './device.js';
import { native } from './native.js';

/** Returns whether `device` can record work. The CPU cannot. */
export function supportsGraphs(device: Device): boolean {
  return native(() => addon.supportsGraphs(device.number));
}

/**
 * Recorded ops with the addresses of their memory: buffers that existed before the recording, and
 * memory for all graphs of the device, which no other code uses.
 */
export class Graph {
  private constructor(
    private readonly device: Device,
    private handle: number,
  ) {}

  /**
   * Runs `body`, calls `onRun`, then records a second run of `body`. `body` must leave no tensor
   * behind, and must neither wait for the device nor read from it. Throws errors of `body`, and
   * DS_CUDA if the recording fails: after `onRun`, the first run is complete in any case.
   */
  static record(device: Device, body: () => void, onRun: () => void): Graph {
    native(() => addon.enterGraphMemory(device.number));
    try {
      body();
      onRun();
      native(() => addon.beginCapture(device.number));
      return new Graph(device, capture(device, body));
    } finally {
      native(() => addon.leaveGraphMemory(device.number));
    }
  }

  /** Enqueues the recorded work on the compute stream. Throws DS_RELEASED after dispose(). */
  launch(): void {
    native(() => addon.launchGraph(this.handle, this.device.compute.handle));
  }

  /** Waits for the device, and frees the graph's memory. Idempotent. */
  dispose(): void {
    const { handle } = this;
    this.handle = 0;
    if (handle !== 0) native(() => addon.releaseGraph(handle));
  }
}

/** Records `body`. Ends the recording even if `body` throws. */
function capture(device: Device, body: () => void): number {
  let isWhole = false;
  let handle = 0;
  try {
    body();
    isWhole = true;
  } finally {
    handle = native(() => addon.endCapture(device.number, isWhole));
  }
  return handle;
}
