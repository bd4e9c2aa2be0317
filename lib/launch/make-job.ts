// Makes a job from options: the nodes of the ranks, the address of rank 0, and the shared
// variables.

import { randomBytes } from 'node:crypto';
import { required } from '../runtime/required.js';
import { absolutePath, workingDirectory } from '../runtime/system-error.js';
import { freePort, isThisMachine, reachableAddress } from './addresses.js';
import { refuse } from './argument-error.js';
import { fileVariables, forwardedVariables } from './exported-environment.js';
import type { Job } from './job.js';
import { type LaunchOptions, requireConsistent } from './launch-options.js';
import { type MachineAccess, type Selection, selectNodes } from './nodes.js';
import type { Program } from './script.js';
import { splitWords } from './shell-words.js';

export interface LaunchJob {
  job: Job;
  /** Nodes of `job`; this process starts their ranks itself. */
  here: readonly number[];
  /** Nodes that it reaches by ssh. */
  remote: readonly number[];
  ssh: SshOptions;
}

export interface SshOptions {
  port: number | null;
  args: readonly string[];
}

/** DeepSpeed's. */
const MASTER_PORT = 29_500;

/** Throws DS_ARGUMENT for everything that the launcher refuses. */
export async function makeJob(
  options: LaunchOptions,
  program: Program,
  around: MachineAccess,
): Promise<LaunchJob> {
  requireConsistent(options);
  const selection = await selectNodes(options, around);
  const { here, remote } = await distribute(selection, options);
  const { masterAddr, masterPort } = await meetingPoint(selection, here, options);
  const variables = fileVariables(around.env, undefined, (file, names) =>
    around.notice(`ranks get the variables of ${file}: ${names.join(', ')}.`),
  );
  const forwarded = remote.length > 0 ? forwardedVariables(around.env) : {};
  const { enable_each_rank_log: logs, bind_cores_to_rank: bind, bind_core_list } = options;
  const job: Job = {
    nodes: selection.nodes,
    device: selection.device,
    masterAddr,
    masterPort,
    secret: secretOf(options, selection, around),
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

/** Which nodes are started here and which by ssh. */
async function distribute(
  { nodes, listed }: Selection,
  { node_rank, no_ssh }: LaunchOptions,
): Promise<Pick<LaunchJob, 'here' | 'remote'>> {
  if (node_rank !== undefined) {
    if (node_rank >= nodes.length) {
      refuse('--node_rank', `0 to ${nodes.length - 1}, for ${nodes.length} nodes`, `${node_rank}`);
    }
    return { here: [node_rank], remote: [] };
  }
  if (!listed) return { here: [0], remote: [] };
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

async function meetingPoint(
  { nodes }: Selection,
  here: readonly number[],
  { master_addr, master_port, node_rank }: LaunchOptions,
): Promise<Pick<Job, 'masterAddr' | 'masterPort'>> {
  if (nodes.length === 1) {
    const masterAddr = master_addr ?? '127.0.0.1';
    const chosen = here.length > 0 ? await freePort(masterAddr) : MASTER_PORT;
    return { masterAddr, masterPort: master_port ?? chosen };
  }
  const masterPort = master_port ?? MASTER_PORT;
  if (master_addr !== undefined) return { masterAddr: master_addr, masterPort };
  if (node_rank !== undefined) {
    refuse('--master_addr', 'the address of node 0, since ds is started on each node', 'none');
  }
  return { masterAddr: await reachableAddress(required(nodes[0]?.host)), masterPort };
}

/** A new one, except where every node has a launcher of its own. */
function secretOf(
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
