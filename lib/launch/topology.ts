// Physical cores of this machine, their logical CPUs and NUMA nodes, from /sys and /proc.

import { readdirSync, readFileSync } from 'node:fs';
import { availableParallelism } from 'node:os';
import { join } from 'node:path';
import { required } from '../runtime/required.js';

import { parseCpuList } from './number-ranges.js';

export interface Core {
  /** Logical CPUs that may be used: the core's hardware threads. */
  cpus: readonly number[];
  numaNode: number;
}

/** The CPUs that this process may run on. `root` replaces "/" in tests, here and below. */
export function allowedCpus(root = '/'): number[] {
  const status = read(join(root, 'proc/self/status'));
  const list = /^Cpus_allowed_list:\t(\S+)/m.exec(status ?? '')?.[1];
  if (list !== undefined) return parseCpuList(list, '/proc/self/status');
  return Array.from({ length: availableParallelism() }, (_, cpu) => cpu);
}

/** The cores that hold `cpus`, in order of NUMA node, then of their first CPU. */
export function coresOf(cpus: readonly number[], root = '/'): Core[] {
  const nodes = numaNodes(root);
  const cores = new Map<string, { cpus: number[]; numaNode: number }>();
  for (const cpu of cpus) {
    const siblings = `sys/devices/system/cpu/cpu${cpu}/topology/thread_siblings_list`;
    const key = read(join(root, siblings))?.trim() ?? String(cpu);
    const core = cores.get(key) ?? { cpus: [], numaNode: nodes.get(cpu) ?? 0 };
    core.cpus.push(cpu);
    cores.set(key, core);
  }
  return [...cores.values()].sort(
    (a, b) => a.numaNode - b.numaNode || required(a.cpus[0]) - required(b.cpus[0]),
  );
}

/** NUMA node by CPU. */
function numaNodes(root: string): Map<number, number> {
  const folder = join(root, 'sys/devices/system/node');
  const nodes = new Map<number, number>();
  for (const name of list(folder)) {
    const [, number] = /^node(\d+)$/.exec(name) ?? [];
    if (number === undefined) continue;
    const file = join(folder, name, 'cpulist');
    for (const cpu of parseCpuList(read(file) ?? '', file)) nodes.set(cpu, Number(number));
  }
  return nodes;
}

function list(folder: string): string[] {
  try {
    return readdirSync(folder);
  } catch {
    return [];
  }
}

function read(file: string): string | null {
  try {
    return readFileSync(file, 'utf8');
  } catch {
    return null;
  }
}
