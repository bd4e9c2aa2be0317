// Creates the environment variables of a rank, with the names of DeepSpeed's launcher.
import type { Variables } from '../runtime/job-environment.js';
import type { Binding } from './core-binding.js';
import type { Job } from './job.js';

/** Position of a rank: its global number, its number on the node, and its node. */
interface RankPosition {
  rank: number;
  localRank: number;
  nodeRank: number;
}

/** Returns the ranks of one node in order. Global numbers follow the order of the nodes. */
export function listRanks(job: Job, nodeRank: number): RankPosition[] {
  const before = job.nodes.slice(0, nodeRank).reduce((sum, node) => sum + node.slots.length, 0);
  const slots = job.nodes[nodeRank]?.slots ?? [];
  return slots.map((_, localRank) => ({ rank: before + localRank, localRank, nodeRank }));
}

export function countRanks(job: Job): number {
  return job.nodes.reduce((sum, node) => sum + node.slots.length, 0);
}

/**
 * Merges `nodeVariables`, the job's variables and the rank's variables; later variables override
 * earlier ones with the same name.
 */
export function createRankEnvironment(
  job: Job,
  position: RankPosition,
  binding: Binding | null,
  nodeVariables: Variables,
): Record<string, string | undefined> {
  const slots = job.nodes[position.nodeRank]?.slots ?? [];
  const inherited = { ...nodeVariables, ...job.environment };
  return {
    ...inherited,
    ...createThreadVariables(binding, inherited),
    RANK: String(position.rank),
    LOCAL_RANK: String(position.localRank),
    WORLD_SIZE: String(countRanks(job)),
    LOCAL_SIZE: String(slots.length),
    CROSS_RANK: String(position.nodeRank),
    CROSS_SIZE: String(job.nodes.length),
    MASTER_ADDR: job.masterAddr,
    MASTER_PORT: String(job.masterPort),
    DS_JOB_SECRET: job.secret,
    // A CPU job must not see a GPU: "auto" then means the CPU.
    CUDA_VISIBLE_DEVICES: job.device === 'gpu' ? slots.join(',') : '',
  };
}

/** Sets OMP_NUM_THREADS to the rank's number of threads, unless the user set a number. */
function createThreadVariables(binding: Binding | null, env: Variables): Record<string, string> {
  if (!binding || env.OMP_NUM_THREADS || env.DS_NUM_THREADS) return {};
  return { OMP_NUM_THREADS: String(binding.threads) };
}
