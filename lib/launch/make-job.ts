// Creates a job from options: the nodes of the ranks, the address of rank 0, and the shared
// variables.

import { randomBytes } from 'node:crypto';
import { required } from '../runtime/required.js';
import { absolutePath, workingDirectory } from '../runtime/system-error.js';
import { findFreePort, findReachableAddress, isThisMachine } from './addresses.js';
import { refuse } from './argument-error.js';
import { readFileVariables, selectForwarded } from './exported-environment.js';
import type { Job } from './job.js';
import { type LaunchOptions, requireConsistent } from './launch-options.js';
import { type MachineAccess, type Selection, selectNodes } from './nodes.js';
import type { Program } from './script.js';
import { splitWords } from './shell-words.js';

export interface LaunchJob {
  job: Job;
  /** Indices of nodes whose ranks this process starts itself. */
  here: readonly number[];
  /** Indices of nodes that this process reaches by ssh. */
  remote: readonly number[];
  ssh: SshOptions;
}

export interface SshOptions {
  port: number | null;
  args: readonly string[];
}

/** DeepSpeed's default port of rank 0. */
const MASTER_PORT = 29_500;

/** Creates the job. Throws DS_ARGUMENT for every option that the launcher rejects. */
export async function makeJob(
  options: LaunchOptions,
  program: Program,
  machine: MachineAccess,
): Promise<LaunchJob> {
  requireConsistent(options);
  const selection = await selectNodes(options, machine);
  const { here, remote } = await assignNodes(selection, options);
  const { masterAddr, masterPort } = await chooseMasterAddress(selection, here, options);
  const variables = readFileVariables(machine.env, undefined, (file, names) =>
    machine.notice(`ranks get the variables of ${file}: ${names.join(', ')}.`),
  );
  const forwarded = remote.length > 0 ? selectForwarded(machine.env) : {};
  const { enable_each_rank_log: logs, bind_cores_to_rank: bind, bind_core_list } = options;
  const job: Job = {
    nodes: selection.nodes,
    device: selection.device,
    masterAddr,
    masterPort,
    secret: createSecret(options, selection, machine),
    script: {
      ...program,
      module: options.module ?? false,
      localRankArgument: !options.no_local_rank,
    },
    directory: workingDirectory(),
    environment: { ...forwarded, ...variables },
    binding: { bind, coreList: bind_core_list ?? null },
    logDirectory: logs === undefined ? null : absolutePath(logs),
    grace: options.grace_period,
    quiet: options.quiet ?? false,
  };
  const words = splitWords('--launcher_args', options.launcher_args ?? '');
  return { job, here, remote, ssh: { port: options.ssh_port ?? null, args: words } };
}

/** Decides which nodes start here and which by ssh. */
async function assignNodes(
  { nodes, isFromHostfile }: Selection,
  { node_rank, no_ssh }: LaunchOptions,
): Promise<Pick<LaunchJob, 'here' | 'remote'>> {
  if (node_rank !== undefined) {
    if (node_rank >= nodes.length) {
      refuse('--node_rank', `0 to ${nodes.length - 1}, for ${nodes.length} nodes`, `${node_rank}`);
    }
    return { here: [node_rank], remote: [] };
  }
  if (!isFromHostfile) return { here: [0], remote: [] };
  if (no_ssh && nodes.length > 1) {
    refuse('--no_ssh', 'a --node_rank on each node, for several nodes', 'none');
  }
  if (no_ssh) return { here: [0], remote: [] };
  const local = await Promise.all(nodes.map(({ host }) => isThisMachine(host)));
  const ranks = nodes.map((_, rank) => rank);
  return {
    here: ranks.filter((rank) => local[rank]),
    remote: ranks.filter((rank) => !local[rank]),
  };
}

async function chooseMasterAddress(
  { nodes }: Selection,
  here: readonly number[],
  { master_addr, master_port, node_rank }: LaunchOptions,
): Promise<Pick<Job, 'masterAddr' | 'masterPort'>> {
  if (nodes.length === 1) {
    const masterAddr = master_addr ?? '127.0.0.1';
    const defaultPort = here.length > 0 ? await findFreePort(masterAddr) : MASTER_PORT;
    return { masterAddr, masterPort: master_port ?? defaultPort };
  }
  const masterPort = master_port ?? MASTER_PORT;
  if (master_addr !== undefined) return { masterAddr: master_addr, masterPort };
  if (node_rank !== undefined) {
    refuse('--master_addr', 'the address of node 0, since ds is started on each node', 'none');
  }
  return { masterAddr: await findReachableAddress(required(nodes[0]?.host)), masterPort };
}

/** Returns a new secret, or DS_JOB_SECRET if every node has its own launcher. */
function createSecret(
  { node_rank }: LaunchOptions,
  { nodes }: Selection,
  { env }: MachineAccess,
): string {
  if (node_rank === undefined || nodes.length === 1) return randomBytes(32).toString('hex');
  return (
    env.DS_JOB_SECRET ||
    refuse(
      'DS_JOB_SECRET',
      'the same random text in the environment of every node',
      'nothing',
      'Make it once, for example with "openssl rand -hex 32", and export it on each node.',
    )
  );
}
