// memory_breakdown: prints memory by owner, before and after each phase of a step.

import { mebibytes } from '../../runtime/byte-text.js';
import type { Device } from '../../runtime/device.js';
import type { OptimizerState } from '../../zero/optimizer-state.js';
import type { ZeroStages } from '../../zero/stage.js';
import { type Phase, type PhaseTimer, WrappedTimer } from './phase-timer.js';

export interface MemoryOwners {
  device: Device;
  stage: ZeroStages;
  state: OptimizerState;
}

/** Memory by owner, in bytes. */
export interface MemoryUse {
  device: {
    /** Bytes in use on the device. On the CPU, page-locked memory is included. */
    inUse: number;
    /** Peak since the last reset. */
    peak: number;
    weights: number;
    gradients: number;
    /** Master weights and optimizer state. */
    optimizer: number;
    /**
     * All other memory: activations, batches, frozen parameters in no unit, other models, and
     * rounding of blocks.
     */
    other: number;
  };
  host: {
    /** Page-locked memory: offloaded weights, master weights, state, and staging buffers. */
    pinned: number;
    /** Resident memory of the process. */
    resident: number;
  };
}

/** Returns the memory in use by owner. It reads only counters on the host, so it does not wait. */
export function measureMemory({ device, stage, state }: MemoryOwners): MemoryUse {
  const { inUse, peakInUse: peak } = device.memory;
  const shards = [...stage.partitions, ...stage.frozen];
  const deviceBytes = shards.flatMap((shard) => [shard.bytes, shard.unit.bytes]);
  const weights = deviceBytes.reduce((sum, bytes) => sum + bytes.weights, 0);
  const gradients = deviceBytes.reduce((sum, bytes) => sum + bytes.gradients, 0);
  const { device: optimizer, host } = state.bytes;
  const stored = shards.reduce((sum, { storage }) => sum + storage.bytes.host, host);
  const pinned = stored + stage.slotBytes;
  const pinnedHere = device.kind === 'cpu' ? pinned : 0;
  const other = inUse - weights - gradients - optimizer - pinnedHere;
  return {
    device: { inUse, peak, weights, gradients, optimizer, other },
    host: { pinned, resident: process.memoryUsage.rss() },
  };
}

/**
 * Returns a line such as "memory after forward | cpu: 812.0 MiB, peak 900.5 MiB | weights: ...".
 */
function formatMemory(point: string, device: Device, { device: on, host }: MemoryUse): string {
  const owners = {
    weights: on.weights,
    gradients: on.gradients,
    'master and optimizer': on.optimizer,
    'activations and other': on.other,
    'host pinned': host.pinned,
    'host resident': host.resident,
  };
  const parts = Object.entries(owners).map(([name, bytes]) => `${name}: ${mebibytes(bytes)}`);
  const total = `${device.name}: ${mebibytes(on.inUse)}, peak ${mebibytes(on.peak)}`;
  return `memory ${point} | ${[total, ...parts].join(' | ')}`;
}

/**
 * A phase timer that prints at the same points as DeepSpeed's memory_breakdown. A line shows the
 * peak since the previous line, because printing resets the peaks of the device.
 */
export class MemoryBreakdown extends WrappedTimer {
  constructor(
    inner: PhaseTimer,
    private readonly owners: MemoryOwners,
  ) {
    super(inner);
    this.print('after initialization');
  }

  override time<T>(phase: Phase, body: () => T): T {
    if (phase === 'reduce') return this.inner.time(phase, body);
    this.print(`before ${phase}`);
    const result = this.inner.time(phase, body);
    this.print(`after ${phase}`);
    return result;
  }

  private print(point: string): void {
    const { device } = this.owners;
    process.stdout.write(`${formatMemory(point, device, measureMemory(this.owners))}\n`);
    device.resetPeaks();
  }
}
