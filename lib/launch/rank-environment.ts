// The variables with the place of a rank, as DeepSpeed's launcher sets them.
import type { Variables } from '../runtime/job-environment.js';
import type { Binding } from './core-binding.js';
import type { Job } from './job.js';

/** A rank of `job`, its node and its resources. */
export interface RankPlace {
  rank: number;
  localRank: number;
  nodeRank: number;
}

/** The ranks of one node, in order. Global ranks count through the nodes in their order. */
export function ranksOf(job: Job, nodeRank: number): RankPlace[] {
  const before = job.nodes.slice(0, nodeRank).reduce((sum, node) => sum + node.slots.length, 0);
  const slots = job.nodes[nodeRank]?.slots ?? [];
  return slots.map((_, localRank) => ({ rank: before + localRank, localRank, nodeRank }));
}

export function worldSizeOf(job: Job): number {
  return job.nodes.reduce((sum, node) => sum + node.slots.length, 0);
}

/** `own` (this node's variables), then the job's, then the rank's; a later one wins. */
export function rankEnvironment(
  job: Job,
  place: RankPlace,
  binding: Binding | null,
  own: Variables,
): Record<string, string | undefined> {
  const slots = job.nodes[place.nodeRank]?.slots ?? [];
  const inherited = { ...own, ...job.environment };
  return {
    ...inherited,
    ...threadVariables(binding, inherited),
    RANK: String(place.rank),
    LOCAL_RANK: String(place.localRank),
    WORLD_SIZE: String(worldSizeOf(job)),
    LOCAL_SIZE: String(slots.length),
    CROSS_RANK: String(place.nodeRank),
    CROSS_SIZE: String(job.nodes.length),
    MASTER_ADDR: job.masterAddr,
    MASTER_PORT: String(job.masterPort),
    DS_JOB_SECRET: job.secret,
    // A job on the CPU sees no GPU: "auto" is the CPU in it.
    CUDA_VISIBLE_DEVICES: job.device === 'gpu' ? slots.join(',') : '',
  };
}

/** Returns the number of threads for the rank's cores, unless the user set it. */
function threadVariables(binding: Binding | null, env: Variables): Record<string, string> {
  if (!binding || env.OMP_NUM_THREADS || env.DS_NUM_THREADS) return {};
  return { OMP_NUM_THREADS: String(binding.threads) };
}
