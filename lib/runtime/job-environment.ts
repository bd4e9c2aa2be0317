// This process's rank, job size and addresses, from the environment of a launcher, Slurm or Open
// MPI.
import { DsError } from '../errors.js';

/** A rank's settings as text; absent settings are undefined. */
export interface JobEnvironment {
  rank?: string;
  worldSize?: string;
  localRank?: string;
  masterAddr?: string;
  masterPort?: string;
  /** Minutes. */
  timeout?: string;
  secret?: string;
}

/** Variables, as a process has them. */
export type Variables = Readonly<Record<string, string | undefined>>;

type RankAndSize = Pick<JobEnvironment, 'rank' | 'worldSize' | 'localRank' | 'masterAddr'>;

/**
 * Returns the rank's settings from the first source that has them:
 *
 * 1. RANK and WORLD_SIZE;
 * 2. Open MPI's variables (mpirun may run inside a Slurm job);
 * 3. the variables of a Slurm step (srun; the batch script itself is not a step).
 *
 * MASTER_ADDR and LOCAL_RANK always apply. Throws DS_ARGUMENT if ranks on several nodes have no
 * MASTER_ADDR and it cannot be derived.
 */
export function rankFromEnvironment(env: Variables): JobEnvironment {
  const position = fromLauncher(env) ?? fromOpenMpi(env) ?? fromSlurm(env) ?? {};
  return {
    ...position,
    localRank: env.LOCAL_RANK ?? position.localRank,
    masterAddr: env.MASTER_ADDR ?? position.masterAddr,
    masterPort: env.MASTER_PORT,
    timeout: env.DEEPSPEED_TIMEOUT,
    secret: env.DS_JOB_SECRET,
  };
}

function fromLauncher({ RANK, WORLD_SIZE }: Variables): RankAndSize | null {
  if (RANK === undefined && WORLD_SIZE === undefined) return null;
  return { rank: RANK, worldSize: WORLD_SIZE };
}

function fromOpenMpi(env: Variables): RankAndSize | null {
  const rank = env.OMPI_COMM_WORLD_RANK;
  const worldSize = env.OMPI_COMM_WORLD_SIZE;
  if (rank === undefined || worldSize === undefined) return null;
  const localRank = env.OMPI_COMM_WORLD_LOCAL_RANK;
  if (env.MASTER_ADDR !== undefined) return { rank, worldSize, localRank };
  if (env.OMPI_COMM_WORLD_LOCAL_SIZE !== worldSize) {
    throw new DsError({
      code: 'DS_ARGUMENT',
      op: 'MASTER_ADDR',
      expected: 'the address of the node of rank 0, because Open MPI runs ranks on several nodes',
      got: 'undefined',
      hint: 'Pass it: mpirun -x MASTER_ADDR=<address> -x DS_JOB_SECRET ...',
    });
  }
  return { rank, worldSize, localRank, masterAddr: '127.0.0.1' };
}

/** https://slurm.schedmd.com/srun.html, "Output environment variables". */
function fromSlurm(env: Variables): RankAndSize | null {
  const rank = env.SLURM_PROCID;
  const worldSize = env.SLURM_STEP_NUM_TASKS ?? env.SLURM_NTASKS;
  if (env.SLURM_STEP_ID === undefined || rank === undefined || worldSize === undefined) return null;
  const nodes = env.SLURM_STEP_NODELIST ?? env.SLURM_NODELIST ?? env.SLURM_JOB_NODELIST ?? '';
  const masterAddr = env.MASTER_ADDR ?? expandNodeList(nodes)[0];
  return { rank, worldSize, localRank: env.SLURM_LOCALID, masterAddr };
}

// Slurm's compressed lists of host names: "gpu[01-03,07],login1".

/** The largest number of hosts in a list, which comes from the environment. */
const MAX_NODES = 65_536;

/**
 * Returns the host names of `list` in order. Numbers keep their leading zeros, and several brackets
 * in a name multiply ("r[1-2]n[1-2]"). Throws DS_ARGUMENT for invalid lists.
 */
export function expandNodeList(list: string): string[] {
  const names = splitOutsideBrackets(list).flatMap((item) => expandItem(item, list));
  if (names.length > MAX_NODES) throw badList(list);
  return names;
}

function splitOutsideBrackets(list: string): string[] {
  return list.match(/(?:[^,[\]]|\[[^[\]]*\]|[[\]])+/g) ?? [];
}

function expandItem(item: string, list: string): string[] {
  const parts = /^([^[\]]*)\[([^[\]]*)\](.*)$/.exec(item);
  if (!parts) {
    if (/[[\]]/.test(item)) throw badList(list);
    return [item];
  }
  const [, head, ranges, rest] = parts as unknown as [string, string, string, string];
  const tails = expandItem(rest, list);
  const numbers = ranges.split(',').flatMap((range) => expandRange(range, list));
  if (numbers.length * tails.length > MAX_NODES) throw badList(list);
  return numbers.flatMap((number) => tails.map((tail) => head + number + tail));
}

function expandRange(range: string, list: string): string[] {
  const [, first, last = first] = /^(\d+)(?:-(\d+))?$/.exec(range) ?? [];
  const count = Number(last) - Number(first) + 1;
  if (first === undefined || !(count >= 1 && count <= MAX_NODES)) throw badList(list);
  return Array.from({ length: count }, (_, i) =>
    String(Number(first) + i).padStart(first.length, '0'),
  );
}

function badList(list: string): DsError {
  return new DsError({
    code: 'DS_ARGUMENT',
    op: 'SLURM_NODELIST',
    expected: 'host names in the format of Slurm, such as "gpu[01-03,07]"',
    got: JSON.stringify(list),
    hint: 'Set MASTER_ADDR to the address of the node of rank 0.',
  });
}
