// Starts the ranks of one node of a job.

import type { Variables } from '../runtime/job-environment.js';
import { required } from '../runtime/required.js';
import { bindRanks } from './core-binding.js';
import type { Job } from './job.js';
import type { LineSink } from './lines.js';
import { createRankEnvironment, listRanks } from './rank-environment.js';
import { createLogFolder, RankProcess } from './rank-process.js';
import type { Reaper } from './reaper.js';
import { createNodeArguments } from './script.js';

interface RankContext {
  /** Variables of this node. */
  env: Variables;
  reaper: Reaper;
  /** Null if ranks write to this process's own output. */
  sink: LineSink | null;
  notice: (text: string) => void;
}

/**
 * Starts the ranks. Throws DS_ARGUMENT, before any rank runs, for a script or CPUs that this node
 * does not have.
 */
export function startRanks(job: Job, nodeRank: number, context: RankContext): RankProcess[] {
  const { env, sink, reaper, notice } = context;
  const { script, directory, logDirectory } = job;
  const { host, slots } = required(job.nodes[nodeRank]);
  const node = createNodeArguments(script);
  const gpus = slots.map((slot) => (job.device === 'gpu' ? slot : null));
  const bindings = bindRanks(job.binding, gpus, env, notice);
  const started = new Date();
  const positions = listRanks(job, nodeRank);
  const logs = positions.map(({ rank }) =>
    logDirectory === null ? null : createLogFolder(logDirectory, rank, started),
  );
  return positions.map((position, i) => {
    const { rank, localRank } = position;
    const binding = bindings?.[i] ?? null;
    const rankArguments = script.localRankArgument ? [`--local_rank=${localRank}`] : [];
    const command = {
      rank,
      localRank,
      args: [...node, ...rankArguments, ...script.args],
      environment: createRankEnvironment(job, position, binding, env),
      directory,
      binding,
      logFile: logs[i] ?? null,
      sink,
      who: job.nodes.length > 1 ? `rank ${rank} on ${host}` : `rank ${rank}`,
    };
    return new RankProcess(command, reaper);
  });
}
