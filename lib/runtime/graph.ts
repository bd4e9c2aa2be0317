// Graphs: work of a device's compute stream that was recorded once and runs again with one call.
import { addon } from './addon.js';
import type { Device } from './device.js';
import { native } from './native.js';

/** Whether `device` records work. The CPU does not. */
export function supportsGraphs(device: Device): boolean {
  return native(() => addon.supportsGraphs(device.number));
}

/**
 * Recorded ops with the addresses of what they read and write: buffers of the recording that live
 * on, and memory that graphs of a device have to themselves, so that each runs in the memory of the
 * others but of nobody else.
 */
export class Graph {
  private constructor(
    private readonly device: Device,
    private handle: number,
  ) {}

  /**
   * Runs `body`, which throws as it does, and then records what it does when it is called again. It
   * must leave no tensor behind, and may neither wait for the device nor read from it. Throws
   * DS_CUDA, and what `body` throws, where that cannot be recorded: it was run all the same, which
   * `onRun` says.
   */
  static record(device: Device, body: () => void, onRun: () => void): Graph {
    native(() => addon.enterGraphMemory(device.number));
    try {
      body();
      onRun();
      native(() => addon.beginCapture(device.number));
      return new Graph(device, captured(device, body));
    } finally {
      native(() => addon.leaveGraphMemory(device.number));
    }
  }

  /** Enqueues all of it on the compute stream. Throws DS_RELEASED. */
  launch(): void {
    native(() => addon.launchGraph(this.handle, this.device.compute.handle));
  }

  /** Waits for the device, and gives the graph's memory back. Idempotent. */
  dispose(): void {
    const { handle } = this;
    this.handle = 0;
    if (handle !== 0) native(() => addon.releaseGraph(handle));
  }
}

/** Ends the recording whatever `body` does. */
function captured(device: Device, body: () => void): number {
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
