// The ranks that share a model out for inference, as the configuration asks: who they are, and
// whether they agree.
import { createHash } from 'node:crypto';
import {
  type Distributed,
  distributed,
  JointCall,
  joinLaunched,
  type ProcessGroup,
} from '../../comm/index.js';
import { DsError } from '../../errors.js';
import type { CausalLM } from '../../models/index.js';
import { jobEnvironment } from '../../runtime/addon.js';
import { cpu, type Device } from '../../runtime/device.js';
import { boundedMs } from '../../runtime/timer.js';
import { held, Tensor } from '../../tensor/index.js';
import type { ResolvedInferenceConfig } from '../config/index.js';

/** Ranks that share a model. */
export interface ModelRanks {
  /** Whose exchanges are parts of the layers. */
  readonly layers: ProcessGroup;
  /** The same ranks, for what the host says. */
  readonly host: ProcessGroup;
  readonly device: Device;
  /** Milliseconds after which a rank that is not heard of is given up. */
  readonly patience: number;
  /** Whether they share experts alone, and each has the rest. */
  readonly expertsOnly: boolean;
}

const DIGEST = 32;
/** A job's timeout where the environment says none, and of each minute of it what is soon. */
const [USUAL_MINUTES, SOON_MS] = [10, 1000];
/** Of waiting for ranks that may never come: those of a job in which each has its own model. */
const MINUTES = 0.25;

/** Of a configuration: who shares, and where it computes. */
type Sharing = Pick<ResolvedInferenceConfig, 'tensor_parallel' | 'moe' | 'device'>;

/**
 * The ranks of the job between which the layers are cut; null where no layer is. Rejects with
 * DS_CONFIG where there are other ranks than `tp_size` or `ep_size` ask for, of which the ranks on
 * the axis tp learn, DS_COMM.
 */
export async function openRanks(sharing: Sharing): Promise<ModelRanks | null> {
  const wanted = sharesOf(sharing);
  if (!wanted) return null;
  const { key, size, expertsOnly } = wanted;
  const kind = sharing.device?.split(':')[0] === 'cpu' ? 'cpu' : 'auto';
  const { job, ranks } = await awaited(wanted, async () => {
    const job = await joinLaunched({ device: kind, mesh: { tp: size } }).catch((error) => {
      throw otherSizes(key, error);
    });
    return { job, ranks: await ranksOf(job, expertsOnly) };
  });
  if (job.mesh.size('tp') === size) return ranks;
  const error = otherRanks(key, size, job);
  report(ranks, error);
  throw error;
}

/**
 * This rank does not begin, because of `error`: those that would share the model with it get
 * DS_COMM in place of its part. `sharing`: what its configuration says of that; null where that
 * cannot be read, and the mesh's axis tp stands for it, or all ranks of the job where nobody has
 * joined it: ranks that say otherwise learn that at once as well. Never rejects.
 */
export async function refuseRanks(sharing: Sharing | null, error: unknown): Promise<void> {
  try {
    if (sharing) {
      const ranks = await openRanks(sharing);
      if (ranks) report(ranks, error);
      return;
    }
    const joined = distributed();
    const job = joined ?? (await joinUnread());
    if (!job) return;
    try {
      if (job.mesh.size('tp') > 1) report(await ranksOf(job, false), error);
    } finally {
      // Its mesh is a guess, which says nothing of what is joined after it.
      if (!joined) job.abandon();
    }
  } catch {
    // The error itself says more; the others then learn of it by this rank's end.
  }
}

/**
 * The job of a rank that cannot tell how others share; null where it is alone, or they do not come.
 */
async function joinUnread(): Promise<Distributed | null> {
  const size = Number(jobEnvironment().worldSize ?? 1);
  return size > 1 ? joinLaunched({ mesh: { tp: size }, timeout: MINUTES }) : null;
}

const report = ({ layers, host }: ModelRanks, error: unknown): void =>
  new JointCall({ always: [layers, host] }).giveUp(error);

/** Whether a model is shared: by how many, as which key says, and what of it. */
function sharesOf({ tensor_parallel: tp, moe }: Sharing) {
  if (tp.enabled && tp.tp_size > 1) {
    return { key: 'tensor_parallel.tp_size', size: tp.tp_size, expertsOnly: false };
  }
  if (!moe.enabled || moe.ep_size === 1) return null;
  return { key: 'moe.ep_size', size: moe.ep_size, expertsOnly: true };
}

async function ranksOf(job: Distributed, expertsOnly: boolean): Promise<ModelRanks> {
  const layers = await job.mesh.axis('tp');
  const host = (await job.newHostGroup(layers.ranks)) as ProcessGroup;
  return { layers, host, device: job.world.device, patience: job.timeout, expertsOnly };
}

/**
 * Waits for the other ranks. A rank that shares no model joins no job, and so cannot be told from
 * one that is late: that this may be why nobody comes is said soon, and in the error at last.
 */
async function awaited<Opened>(
  { key, size }: { key: string; size: number },
  open: () => Promise<Opened>,
): Promise<Opened> {
  const why = `every rank has to ask for ${key} ${size}: one that does not has an engine of its own, and never comes`;
  const minutes = Number(jobEnvironment().timeout ?? USUAL_MINUTES);
  const timer = setTimeout(
    () => {
      const notice = `initInference waits for the other ranks: ${why}`;
      process.emitWarning(notice, { type: 'DsWarning', code: 'DS_COMM' });
    },
    boundedMs(minutes * SOON_MS),
  ).unref();
  try {
    return await open();
  } catch (error) {
    if (!(error instanceof DsError && error.code === 'DS_COMM' && / in time$/.test(error.got))) {
      throw error;
    }
    const { code, op, expected, got } = error;
    const hint = `${error.hint} Beside that, ${why}.`;
    throw new DsError({ code, op, expected, got, hint, cause: error });
  } finally {
    clearTimeout(timer);
  }
}

/** What joining says of a mesh, as the configuration calls it; other errors as they are. */
function otherSizes(op: string, error: unknown): unknown {
  if (!(error instanceof DsError && error.op === 'initDistributed mesh')) return error;
  const { expected, got } = error;
  const hint = `Give every rank the same ${op}.`;
  return new DsError({ code: 'DS_CONFIG', op, expected, got, hint, cause: error });
}

function otherRanks(op: string, size: number, { mesh, worldSize }: Distributed): DsError {
  const hint =
    worldSize === 1
      ? `Start ${size} ranks: ds --num_procs ${size} SCRIPT, or --num_gpus.`
      : `Give initDistributed() { mesh: { tp: ${size} } }, or leave joining to initInference().`;
  return new DsError({
    ...{ code: 'DS_CONFIG', op, hint },
    expected: `${mesh.size('tp')}, the ranks on the mesh's axis tp`,
    got: String(size),
  });
}

/**
 * The least of the ranks' numbers of blocks. Throws DS_ARGUMENT on every rank where one was given
 * another model or configuration, DS_COMM.
 */
export function agree(
  { host }: ModelRanks,
  model: CausalLM,
  { notices: _, device: __, ...config }: ResolvedInferenceConfig,
  blocks: number,
): number {
  requireAlike(host, 'configurations', config);
  requireAlike(host, 'models', [model.constructor.name, model.config]);
  const least = held(() => Tensor.from(Int32Array.of(blocks), { device: cpu() }));
  host.allReduce(least, { op: 'min', purpose: 'blocks of an inference engine' }).wait();
  const [agreed] = least.toArray() as [number];
  least.release();
  return agreed;
}

function requireAlike(host: ProcessGroup, what: string, value: unknown): void {
  const own = createHash('sha256').update(JSON.stringify(value)).digest();
  const mine = held(() => Tensor.from(Uint8Array.from(own)));
  const all = held(() => Tensor.empty([host.size * DIGEST], 'u8', cpu()));
  host.allGather(all, mine, { purpose: `${what} of inference engines` }).wait();
  const found = Buffer.from(all.toRaw() as Uint8Array);
  for (const one of [mine, all]) one.release();
  const digestOf = (rank: number): Buffer => found.subarray(rank * DIGEST, (rank + 1) * DIGEST);
  const other = host.ranks.findIndex((_, rank) => !digestOf(rank).equals(digestOf(0)));
  if (other < 0) return;
  throw new DsError({
    code: 'DS_ARGUMENT',
    op: 'initInference',
    expected: `the same ${what} on all ranks that share the model`,
    got: `others on rank ${host.ranks[other]} than on rank ${host.ranks[0]}`,
  });
}
