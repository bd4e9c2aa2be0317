// Reads the physical cores of this machine, their logical CPUs and NUMA nodes from /sys and /proc.

import { readdirSync, readFileSync } from 'node:fs';
import { availableParallelism } from 'node:os';
import { join } from 'node:path';
import { required } from '../runtime/required.js';

import { parseCpuList } from './number-ranges.js';

export interface Core {
  /** Logical CPUs of the core (hardware threads) that may be used. */
  cpus: readonly number[];
  numaNode: number;
}

/**
 * Returns the CPUs that this process may use. Tests pass `root` in place of "/", here and below.
 */
export function listAllowedCpus(root = '/'): number[] {
  const status = readText(join(root, 'proc/self/status'));
  const list = /^Cpus_allowed_list:\t(\S+)/m.exec(status ?? '')?.[1];
  if (list !== undefined) return parseCpuList(list, '/proc/self/status');
  return Array.from({ length: availableParallelism() }, (_, cpu) => cpu);
}

/** Returns the cores that contain `cpus`, in order of NUMA node, then of first CPU. */
export function listCores(cpus: readonly number[], root = '/'): Core[] {
  const nodes = readNumaNodes(root);
  const cores = new Map<string, { cpus: number[]; numaNode: number }>();
  for (const cpu of cpus) {
    const siblings = `sys/devices/system/cpu/cpu${cpu}/topology/thread_siblings_list`;
    const key = readText(join(root, siblings))?.trim() ?? String(cpu);
    const core = cores.get(key) ?? { cpus: [], numaNode: nodes.get(cpu) ?? 0 };
    core.cpus.push(cpu);
    cores.set(key, core);
  }
  return [...cores.values()].sort(
    (a, b) => a.numaNode - b.numaNode || required(a.cpus[0]) - required(b.cpus[0]),
  );
}

/** Returns the NUMA node of each CPU. */
function readNumaNodes(root: string): Map<number, number> {
  const folder = join(root, 'sys/devices/system/node');
  const nodes = new Map<number, number>();
  for (const name of readFolder(folder)) {
    const [, number] = /^node(\d+)$/.exec(name) ?? [];
    if (number === undefined) continue;
    const file = join(folder, name, 'cpulist');
    for (const cpu of parseCpuList(readText(file) ?? '', file)) nodes.set(cpu, Number(number));
  }
  return nodes;
}

function readFolder(folder: string): string[] {
  try {
    return readdirSync(folder);
  } catch {
    return [];
  }
}

function readText(file: string): string | null {
  try {
    return readFileSync(file, 'utf8');
  } catch {
    return null;
  }
}
