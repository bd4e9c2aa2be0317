// Binds ranks to cores: chooses the cores of each rank, the command that sets its affinity, and its
// number of threads.
import { accessSync, constants } from 'node:fs';
import { delimiter, join } from 'node:path';
import { gpuNumaNode } from '../runtime/gpu-location.js';
import type { Variables } from '../runtime/job-environment.js';
import { refuse } from './argument-error.js';
import { formatRanges, parseCpuList } from './number-ranges.js';
import { type Core, listAllowedCpus, listCores } from './topology.js';

/** The command prefix that binds a rank, and the number of threads for its CPU work. */
export interface Binding {
  prefix: readonly string[];
  threads: number;
}

export interface BindingRequest {
  /** Whether to bind ranks. */
  bind: boolean;
  /** List of the CPUs to use; null for all CPUs that this process may use. */
  coreList: string | null;
}

/**
 * Returns a Binding for each rank of this node. `gpus`: the ranks' GPUs, null on the CPU. Returns
 * null if ranks stay unbound; `notice` then reports the reason once, unless the user turned binding
 * off. Throws DS_ARGUMENT for a list with CPUs that this process may not use.
 */
export function bindRanks(
  request: BindingRequest,
  gpus: readonly (string | null)[],
  env: Variables,
  notice: (text: string) => void,
): Binding[] | null {
  if (!request.bind) return null;
  const allowed = listAllowedCpus();
  const cpus = selectCpus(request.coreList, allowed);
  const cores = listCores(cpus);
  const nodes = gpus.map((gpu) => (gpu === null ? null : gpuNumaNode(gpu)));
  const shares = splitCores(cores, nodes);
  if (!shares) {
    notice(`${gpus.length} ranks on ${cores.length} cores: ranks are not bound to cores.`);
    return gpus.map(() => ({ prefix: [], threads: 1 }));
  }
  const tool = findBindingTool(env);
  const isRestricted = shares.some((share) => listCpus(share).length < allowed.length);
  if (!tool && isRestricted) {
    notice('Ranks are not bound to cores: neither taskset nor numactl is installed.');
  }
  return shares.map((share) => {
    const list = listCpus(share);
    const isBound = tool !== null && list.length < allowed.length;
    return { prefix: isBound ? [...tool, formatRanges(list)] : [], threads: share.length };
  });
}

function selectCpus(coreList: string | null, allowed: readonly number[]): readonly number[] {
  if (coreList === null) return allowed;
  const cpus = parseCpuList(coreList, '--bind_core_list');
  const foreign = cpus.filter((cpu) => !allowed.includes(cpu));
  if (cpus.length === 0 || foreign.length > 0) {
    refuse('--bind_core_list', `CPUs among ${formatRanges(allowed)}`, JSON.stringify(coreList));
  }
  return cpus;
}

function listCpus(share: readonly Core[]): number[] {
  return share.flatMap((core) => core.cpus);
}

/**
 * Returns the first tool on PATH that sets a command's CPU affinity, with its option. Memory
 * follows by first touch.
 */
function findBindingTool(env: Variables): string[] | null {
  const taskset = findProgram('taskset', env);
  if (taskset) return [taskset, '-c'];
  const numactl = findProgram('numactl', env);
  return numactl ? [numactl, '-C'] : null;
}

function findProgram(name: string, env: Variables): string | null {
  for (const folder of (env.PATH ?? '').split(delimiter)) {
    const file = join(folder, name);
    try {
      accessSync(file, constants.X_OK);
      return file;
    } catch {
      // The folder does not contain the program.
    }
  }
  return null;
}

/**
 * Divides the cores between ranks. `nodes[i]`: NUMA node near rank i, null for any. If the node of
 * every rank is known and has cores, ranks of one node share its cores; otherwise all ranks share
 * all cores. Shares are contiguous and disjoint and differ by at most one core. Returns null if
 * there are fewer cores than ranks.
 */
export function splitCores(
  cores: readonly Core[],
  nodes: readonly (number | null)[],
): Core[][] | null {
  const areNodesKnown = nodes.every((node) => cores.some((core) => core.numaNode === node));
  const pools = areNodesKnown ? nodes : nodes.map(() => null);
  const shares = pools.map((node, rank) => {
    const pool = node === null ? cores : cores.filter((core) => core.numaNode === node);
    const rankCount = pools.filter((other) => other === node).length;
    const index = pools.slice(0, rank).filter((other) => other === node).length;
    const start = Math.floor((index * pool.length) / rankCount);
    const end = Math.floor(((index + 1) * pool.length) / rankCount);
    return pool.slice(start, end);
  });
  return shares.every((share) => share.length > 0) ? shares : null;
}
