// Selects the nodes and slots of a job: from the hostfile or this machine, through filters and
// limits.

import type { GpuProbe } from '../../types/addon.js';
import type { Variables } from '../runtime/job-environment.js';
import { required } from '../runtime/required.js';
import { refuse } from './argument-error.js';
import { excludeSlots, includeSlots } from './filters.js';
import { type Node, readHostfile } from './hostfile.js';
import type { LaunchOptions } from './launch-options.js';
import { listVisibleGpus } from './local-gpus.js';

export interface Selection {
  nodes: Node[];
  device: 'gpu' | 'cpu';
  /** Whether the nodes come from a hostfile. */
  isFromHostfile: boolean;
}

/** Access to the machine and to the user's environment. */
export interface MachineAccess {
  env: Variables;
  probe: () => Promise<GpuProbe>;
  notice: (text: string) => void;
}

/**
 * Returns the nodes of the job, each with one slot per rank. Throws DS_ARGUMENT if options or
 * hostfile name missing nodes, slots or GPUs.
 */
export async function selectNodes(
  options: LaunchOptions,
  machine: MachineAccess,
): Promise<Selection> {
  const hostfileNodes = readHostfile(options.hostfile);
  const { nodes, device } = hostfileNodes
    ? { nodes: hostfileNodes, device: options.num_procs ? ('cpu' as const) : ('gpu' as const) }
    : await describeThisMachine(options, machine);
  const filtered = filterSlots(nodes, options);
  const limited = limitSlots(filtered, options);
  if (hostfileNodes)
    return { nodes: limitNodes(limited, options.num_nodes), device, isFromHostfile: true };
  return { nodes: repeatNode(limited, options), device, isFromHostfile: false };
}

async function describeThisMachine(
  options: LaunchOptions,
  { env, probe, notice }: MachineAccess,
): Promise<Pick<Selection, 'nodes' | 'device'>> {
  const localNode = (slots: string[]): Node[] => [{ host: 'localhost', slots }];
  const { num_procs } = options;
  if (num_procs) {
    return {
      nodes: localNode(Array.from({ length: num_procs }, (_, i) => String(i))),
      device: 'cpu',
    };
  }
  const gpuProbe = await probe();
  const gpus = listVisibleGpus(env, gpuProbe);
  if (gpus.length > 0) return { nodes: localNode(gpus), device: 'gpu' };
  if (options.num_gpus) {
    const hint = `${gpuProbe.message} For the CPU use --num_procs.`.trim();
    refuse('--num_gpus', 'GPUs that can be used', 'none', hint);
  }
  notice('No GPU was found, so one process starts on the CPU. Use --num_procs for more.');
  return { nodes: localNode(['0']), device: 'cpu' };
}

function filterSlots(nodes: Node[], { include, exclude }: LaunchOptions): Node[] {
  if (include) return includeSlots(nodes, include);
  return exclude ? excludeSlots(nodes, exclude) : nodes;
}

/** Keeps the first slots of every node. */
function limitSlots(nodes: Node[], { num_gpus, num_procs }: LaunchOptions): Node[] {
  const count = num_gpus ?? num_procs;
  if (count === undefined) return nodes;
  const option = num_gpus ? '--num_gpus' : '--num_procs';
  return nodes.map(({ host, slots }) => {
    if (count > slots.length) {
      refuse(option, `at most the ${slots.length} slots of ${host}`, String(count));
    }
    return { host, slots: slots.slice(0, count) };
  });
}

function limitNodes(nodes: Node[], count = nodes.length): Node[] {
  if (count > nodes.length) {
    refuse('--num_nodes', `at most the ${nodes.length} hosts of the hostfile`, String(count));
  }
  return nodes.slice(0, count);
}

/** Repeats this machine's node: without a hostfile, every node is assumed to be the same. */
function repeatNode([node]: Node[], { num_nodes = 1, node_rank }: LaunchOptions): Node[] {
  if (num_nodes > 1 && node_rank === undefined) {
    refuse(
      '--num_nodes',
      'a --hostfile, or a --node_rank on each node, for several nodes',
      'neither',
      'Run the same command with --node_rank 0, 1, ... and --master_addr on each node.',
    );
  }
  return Array.from({ length: num_nodes }, () => required(node));
}
