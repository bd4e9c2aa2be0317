// Measures the memory available to each rank.

import { availableParallelism } from 'node:os';
import type { ResolvedConfig } from '../../types/config.js';
import type { Module } from '../nn/module.js';
import { cpu, type Device } from '../runtime/device.js';
import { diskOf } from '../runtime/disk.js';
import { hostLimits } from '../runtime/host-limits.js';
import type { Cluster } from './step-time.js';
import type { AvailableMemory } from './zero-choice.js';

/** The location of a rank and its available bytes. */
export interface RankMemory {
  /** Equal for ranks that share host memory. */
  machine: string;
  cores: number;
  /** Bytes of its device for this run; null if the host memory is the limit. */
  device: number | null;
  deviceName: string;
  /** The name that the driver of a GPU reports. */
  card: string;
  /** Bytes of the host for all its ranks: the free bytes, and the possible maximum. */
  host: number;
  hostAtMost: number;
  /** Bytes of this process that become free for the run: see countReturnedBytes(). */
  returned: number;
  disk: number;
}

const countBytesOn = (module: Module, kind: Device['kind']): number =>
  module
    .parameters()
    .filter(
      (parameter) =>
        parameter.isMaterialized && parameter.missing === null && parameter.device.kind === kind,
    )
    .reduce((sum, { bytes }) => sum + bytes, 0);

/**
 * Returns the bytes of host memory that become free for the run: the model, which moves, and memory
 * that an earlier engine left in the CPU allocator.
 */
export function countReturnedBytes(module: Module): number {
  const { reserved, inUse } = cpu().memory;
  return countBytesOn(module, 'cpu') + Math.max(0, reserved - inUse);
}

/** Returns the cap of a device or its size in bytes; null for host memory without a cap. */
export function deviceLimit({ kind, memory: { cap, total } }: Device): number | null {
  if (cap > 0) return cap;
  return kind === 'cpu' ? null : total;
}

/** Returns the machine of this process and its available bytes. */
export function measureRankMemory(
  module: Module,
  config: ResolvedConfig,
  device: Device,
): RankMemory {
  const limit = deviceLimit(device);
  const limits = hostLimits();
  const within = Math.min(Number.MAX_SAFE_INTEGER, ...limits.groups.map(({ free }) => free));
  const { nvme_path: folder } = config.zero_optimization.offload_optimizer;
  const free = (max: number): number =>
    Math.max(1, max - device.memory.inUse + countBytesOn(module, device.kind));
  return {
    machine: limits.machine,
    cores: availableParallelism(),
    device: limit === null ? null : free(limit),
    deviceName: device.name,
    card: device.info.name,
    host: Math.min(limits.free, within),
    hostAtMost: Math.min(limits.canGrow ? limits.atMost : limits.free, within),
    returned: countReturnedBytes(module),
    disk: folder === null ? 0 : diskOf(folder).free,
  };
}

/** Groups `all` by `key`, in the order of first occurrence. */
export function groupBy<T>(all: readonly T[], key: (value: T) => string): T[][] {
  const groups = new Map<string, T[]>();
  for (const item of all) groups.set(key(item), [...(groups.get(key(item)) ?? []), item]);
  return [...groups.values()];
}

/** Returns the number of machines of the ranks, and their devices and cores. */
export function describeCluster(rankMemories: readonly RankMemory[]): Cluster {
  const machines = groupBy(rankMemories, ({ machine }) => machine);
  return {
    nodes: machines.length,
    devicesPerNode: Math.max(...machines.map(({ length }) => length)),
    coresPerNode: Math.min(...rankMemories.map(({ cores }) => cores)),
    nodeLink: 50e9,
  };
}

/** Returns the smallest available bytes of all ranks. Ranks of a host divide its free memory. */
export function findAvailableMemory(rankMemories: readonly RankMemory[]): AvailableMemory {
  const machines = groupBy(rankMemories, ({ machine }) => machine);
  const min = (of: (here: RankMemory[]) => number): number => Math.min(...machines.map(of));
  const perRank = (key: 'host' | 'hostAtMost') => (here: RankMemory[]) => {
    const returned = here.reduce((sum, memory) => sum + memory.returned, 0);
    return (Math.min(...here.map((memory) => memory[key])) + returned) / here.length;
  };
  const devices = rankMemories.flatMap(({ device }) => device ?? []);
  return {
    device: devices.length > 0 ? Math.min(...devices) : null,
    host: min(perRank('host')),
    hostAtMost: min(perRank('hostAtMost')),
    disk: min((here) => Math.min(...here.map(({ disk }) => disk)) / here.length),
  };
}
