// Resolves how a rank joins its job. Options of initDistributed() win over the environment of the
// launcher.
import { DsError } from '../errors.js';
import { jobEnvironment } from '../runtime/addon.js';
import { type Device, device as findDevice, probeGpus } from '../runtime/device.js';
import type { MeshOptions } from './mesh-shape.js';

/** How this rank joins its job. The environment of the launcher sets missing options. */
export interface InitOptions {
  /** Index of this rank. Default: RANK, else 0. */
  rank?: number;
  /** Number of ranks. Default: WORLD_SIZE, else 1. */
  worldSize?: number;
  /** Rank of this process on its host. Default: LOCAL_RANK, else the rank. */
  localRank?: number;
  /** Address of rank 0's store. Default: MASTER_ADDR, else 127.0.0.1. */
  masterAddr?: string;
  /** Port of rank 0's store. Default: MASTER_PORT, else 29500. */
  masterPort?: number;
  /** Minutes until joining or one collective fails. Default: DEEPSPEED_TIMEOUT, else 10. */
  timeout?: number;
  /** The secret of the job, equal on every rank. Default: DS_JOB_SECRET. */
  secret?: string;
  /** Whether this process serves the job's store. Default: true on rank 0. */
  serveStore?: boolean;
  /**
   * Device of the rank. "cuda": the GPU of the local rank; throws without a GPU. Default: "auto",
   * the same GPU, else the CPU.
   */
  device?: string | Device;
  /** Sizes of the axes pp, dp, sp and tp, equal on every rank. Default: all ranks on dp. */
  mesh?: MeshOptions;
}

/** The options with all missing values filled in. */
interface JoinSettings {
  rank: number;
  worldSize: number;
  localRank: number;
  host: string;
  port: number;
  secret: string;
  /** Milliseconds until joining or one collective fails. */
  timeout: number;
  serve: boolean;
  device: Device;
}

/**
 * Fills missing options from the environment. Throws DS_ARGUMENT for invalid numbers, and for
 * several ranks without a secret. Throws DS_DEVICE if the device does not exist.
 */
export function resolveSettings(options: InitOptions): JoinSettings {
  const env = jobEnvironment();
  const worldSize = requireWhole('worldSize', options.worldSize ?? env.worldSize ?? 1, 1, 2 ** 20);
  const rank = requireWhole('rank', options.rank ?? env.rank ?? 0, 0, worldSize - 1);
  const localRank = requireWhole(
    'localRank',
    options.localRank ?? env.localRank ?? rank,
    0,
    2 ** 20,
  );
  const secret = options.secret ?? env.secret ?? '';
  if (worldSize > 1 && secret === '') {
    throw new DsError({
      code: 'DS_ARGUMENT',
      op: 'initDistributed',
      expected: 'the secret of the job',
      got: 'no secret',
      hint: 'The launcher creates one. Without the launcher, set DS_JOB_SECRET to the same random text on every rank.',
    });
  }
  const minutes = Number(options.timeout ?? env.timeout ?? 10);
  if (!(minutes > 0 && minutes < 2 ** 20)) throw invalid('timeout', 'a number of minutes', minutes);
  return {
    rank,
    worldSize,
    localRank,
    host: options.masterAddr ?? env.masterAddr ?? '127.0.0.1',
    port: requireWhole('masterPort', options.masterPort ?? env.masterPort ?? 29500, 1, 65535),
    secret,
    timeout: minutes * 60_000,
    serve: options.serveStore ?? rank === 0,
    device: chooseDevice(options.device ?? 'auto', localRank),
  };
}

function chooseDevice(requested: string | Device, localRank: number): Device {
  if (requested !== 'auto' && requested !== 'cuda') return findDevice(requested);
  return findDevice(localDevice(requested, localRank, probeGpus().deviceCount));
}

function requireWhole(name: string, value: number | string, low: number, high: number): number {
  const number = typeof value === 'string' && value.trim() === '' ? Number.NaN : Number(value);
  if (Number.isInteger(number) && number >= low && number <= high) return number;
  throw invalid(name, `a whole number from ${low} to ${high}`, value);
}

function invalid(name: string, expected: string, got: number | string): DsError {
  return new DsError({
    code: 'DS_ARGUMENT',
    op: `initDistributed ${name}`,
    expected,
    got: JSON.stringify(got),
    hint: 'See the options and the environment: RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT.',
  });
}

/**
 * Returns the name of the device of a rank. If no GPU is visible, "auto" returns "cpu" and "cuda"
 * returns "cuda", which does not open.
 *
 * If every rank sees all GPUs of its host, the rank uses the GPU with its local rank. A scheduler
 * may restrict a rank to fewer GPUs (srun --gpus-per-task=1 shows each task one GPU, number 0).
 * Therefore the index is the local rank modulo the visible GPUs. If two ranks select the same GPU,
 * opening their group fails.
 */
export function localDevice(
  requested: 'auto' | 'cuda',
  localRank: number,
  visibleGpus: number,
): string {
  if (visibleGpus > 0) return `cuda:${localRank % visibleGpus}`;
  return requested === 'auto' ? 'cpu' : requested;
}
