// Opens the process groups of ranks that share a model, and checks that the ranks agree.

import { createHash } from 'node:crypto';
import {
  type Distributed,
  distributed,
  JointCall,
  joinLaunched,
  type ProcessGroup,
} from '../../comm/index.js';
import { AXIS } from '../../comm/mesh-shape.js';
import { DsError } from '../../errors.js';
import type { CausalLM } from '../../models/index.js';
import { jobEnvironment } from '../../runtime/addon.js';
import { cpu, type Device } from '../../runtime/device.js';
import { argumentError } from '../../runtime/input-errors.js';
import { leading, required } from '../../runtime/required.js';
import { boundedMs } from '../../runtime/timer.js';
import { held, Tensor } from '../../tensor/index.js';
import type { ResolvedInferenceConfig } from '../config/index.js';

/** Ranks that share a model. */
export interface ModelRanks {
  /** Group of the collectives inside the layers. */
  readonly layers: ProcessGroup;
  /** Group of the same ranks for host messages. */
  readonly host: ProcessGroup;
  readonly device: Device;
  /** Milliseconds without a message after which a rank counts as lost. */
  readonly timeoutMs: number;
  /** True if the ranks shard only experts and replicate the other layers. */
  readonly expertsOnly: boolean;
}

const DIGEST = 32;
/**
 * Default timeout of a job in minutes, and milliseconds before the first warning per minute of
 * timeout.
 */
const [DEFAULT_MINUTES, SOON_MS] = [10, 1000];
/** Minutes to wait for ranks that may never join, such as ranks with separate models. */
const UNREAD_MINUTES = 0.25;

/** Configuration keys for sharing and device. */
type SharingConfig = Pick<ResolvedInferenceConfig, 'tensor_parallel' | 'moe' | 'device'>;

/**
 * Joins the job and returns the ranks that share the layers; null without sharing. Rejects with
 * DS_CONFIG if the axis tp of the mesh has another size than `tp_size` or `ep_size`. The ranks of
 * the axis then fail too. Rejects with DS_COMM.
 */
export async function openRanks(sharing: SharingConfig): Promise<ModelRanks | null> {
  const sharding = readSharding(sharing);
  if (!sharding) return null;
  const { key, size, expertsOnly } = sharding;
  const kind = sharing.device?.split(':')[0] === 'cpu' ? 'cpu' : 'auto';
  const { job, ranks } = await awaitRanks(sharding, async () => {
    const job = await joinLaunched({ device: kind, mesh: { tp: size } }).catch((error) => {
      throw toMeshSizeError(key, error);
    });
    return { job, ranks: await openGroups(job, expertsOnly) };
  });
  if (job.mesh.size(AXIS.tensor) === size) return ranks;
  const error = rankCountError(key, size, job);
  report(ranks, error);
  throw error;
}

/**
 * Reports `error` of this rank to the ranks that share a model with it. They get DS_COMM. `sharing`
 * is null if the configuration is unreadable. It then reports to the axis tp, or to all ranks if
 * this rank has not joined the job. Ranks with another configuration then fail as well. Never
 * rejects.
 */
export async function refuseRanks(sharing: SharingConfig | null, error: unknown): Promise<void> {
  try {
    if (sharing) {
      const ranks = await openRanks(sharing);
      if (ranks) report(ranks, error);
      return;
    }
    const joined = distributed();
    const job = joined ?? (await joinWithUnknownSharing());
    if (!job) return;
    try {
      if (job.mesh.size(AXIS.tensor) > 1) report(await openGroups(job, false), error);
    } finally {
      // This mesh is a guess; a later initInference() must not find it.
      if (!joined) job.abandon();
    }
  } catch {
    // `error` is more precise. The other ranks detect the exit of this rank.
  }
}

/**
 * Joins the job with unknown sharing. Returns null for a single process, or if other ranks do not
 * join in time.
 */
async function joinWithUnknownSharing(): Promise<Distributed | null> {
  const size = Number(jobEnvironment().worldSize ?? 1);
  return size > 1 ? joinLaunched({ mesh: { tp: size }, timeout: UNREAD_MINUTES }) : null;
}

const report = ({ layers, host }: ModelRanks, error: unknown): void =>
  new JointCall({ always: [layers, host] }).giveUp(error);

/** Returns the number of ranks, its configuration key, and whether only experts are sharded. */
function readSharding({ tensor_parallel: tp, moe }: SharingConfig) {
  if (tp.enabled && tp.tp_size > 1) {
    return { key: 'tensor_parallel.tp_size', size: tp.tp_size, expertsOnly: false };
  }
  if (!moe.enabled || moe.ep_size === 1) return null;
  return { key: 'moe.ep_size', size: moe.ep_size, expertsOnly: true };
}

async function openGroups(job: Distributed, expertsOnly: boolean): Promise<ModelRanks> {
  const layers = await job.mesh.axis(AXIS.tensor);
  const host = required(await job.newHostGroup(layers.ranks));
  return { layers, host, device: job.world.device, timeoutMs: job.timeout, expertsOnly };
}

/**
 * Waits for the other ranks. A rank without sharing never joins, which looks like a late rank. An
 * early warning and the timeout error name this cause.
 */
async function awaitRanks<Opened>(
  { key, size }: { key: string; size: number },
  open: () => Promise<Opened>,
): Promise<Opened> {
  const why = `every rank must set ${key} to ${size}; a rank without it has its own engine and never joins`;
  const minutes = Number(jobEnvironment().timeout ?? DEFAULT_MINUTES);
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
    const hint = `${error.hint} Also, ${why}.`;
    throw new DsError({ code, op, expected, got, hint, cause: error });
  } finally {
    clearTimeout(timer);
  }
}

/**
 * Converts mesh errors of joining to DS_CONFIG for the key `op`; returns other errors unchanged.
 */
function toMeshSizeError(op: string, error: unknown): unknown {
  if (!(error instanceof DsError && error.op === 'initDistributed mesh')) return error;
  const { expected, got } = error;
  const hint = `Give every rank the same ${op}.`;
  return new DsError({ code: 'DS_CONFIG', op, expected, got, hint, cause: error });
}

function rankCountError(op: string, size: number, { mesh, worldSize }: Distributed): DsError {
  const hint =
    worldSize === 1
      ? `Start ${size} ranks: ds --num_procs ${size} SCRIPT, or --num_gpus.`
      : `Give initDistributed() { mesh: { tp: ${size} } }, or leave joining to initInference().`;
  return new DsError({
    code: 'DS_CONFIG',
    op,
    hint,
    expected: `${mesh.size(AXIS.tensor)}, the ranks on the mesh's axis tp`,
    got: String(size),
  });
}

/**
 * Returns the minimum of the ranks' block counts. Throws DS_ARGUMENT on every rank if models or
 * configurations differ, and DS_COMM.
 */
export function agree(
  { host }: ModelRanks,
  model: CausalLM,
  { notices: _, device: __, ...config }: ResolvedInferenceConfig,
  blocks: number,
): number {
  requireEqualOnRanks(host, 'configurations', config);
  requireEqualOnRanks(host, 'models', [model.constructor.name, model.config]);
  const min = held(() => Tensor.from(Int32Array.of(blocks), { device: cpu() }));
  host.allReduce(min, { op: 'min', purpose: 'blocks of an inference engine' }).wait();
  const [agreed] = leading(min.toArray(), 1);
  min.release();
  return agreed;
}

function requireEqualOnRanks(host: ProcessGroup, what: string, value: unknown): void {
  const ownDigest = createHash('sha256').update(JSON.stringify(value)).digest();
  const digestTensor = held(() => Tensor.from(Uint8Array.from(ownDigest)));
  const all = held(() => Tensor.empty([host.size * DIGEST], 'u8', cpu()));
  host.allGather(all, digestTensor, { purpose: `${what} of inference engines` }).wait();
  const digests = Buffer.from(all.toRaw() as Uint8Array);
  for (const tensor of [digestTensor, all]) tensor.release();
  const digestOf = (rank: number): Buffer => digests.subarray(rank * DIGEST, (rank + 1) * DIGEST);
  const other = host.ranks.findIndex((_, rank) => !digestOf(rank).equals(digestOf(0)));
  if (other < 0) return;
  throw argumentError(
    'initInference',
    `the same ${what} on all ranks that share the model`,
    `different ${what} on rank ${host.ranks[other]} and rank ${host.ranks[0]}`,
  );
}
