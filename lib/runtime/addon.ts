// Finds and loads the native addon once. Throws DS_PLATFORM with a fix if it cannot.

import { availableParallelism } from 'node:os';
import type { Addon } from '../../types/addon.generated.js';
import { DsError } from '../errors.js';
import type { CacheVariables } from './gpu-code.js';
import { opInterface } from './interface.generated.js';
import { type JobEnvironment, rankFromEnvironment } from './job-environment.js';
import {
  addonCandidates,
  gpuLibraryCandidates,
  loadHint,
  platformName,
  platformPackage,
} from './native-files.js';
import { errorMessage } from './system-error.js';

/** An addon and its file. */
interface Loaded {
  addon: Addon;
  file: string;
}

/**
 * Throws DS_PLATFORM for an addon of other headers: ops are called by number, so it would run other
 * ops.
 */
function refuseOtherOps(loaded: Addon, file: string): void {
  const version = loaded.opInterface?.();
  if (version === opInterface) return;
  throw new DsError({
    code: 'DS_PLATFORM',
    op: 'native addon',
    expected: `an addon built for the ops of this package, ${opInterface}`,
    got: `${file} for ${version ?? 'an earlier version'}`,
    hint: 'Rebuild it: npm run build:native. If DS_NATIVE_BINDING is set, it selects the file.',
  });
}

/**
 * Loads the file DS_NATIVE_BINDING if it is set, else the first candidate that loads and has these
 * ops.
 */
function load(): Loaded {
  const override = process.env.DS_NATIVE_BINDING;
  const failures: { file: string; error: unknown }[] = [];
  for (const file of override ? [override] : addonCandidates()) {
    try {
      const loaded = require(file) as Addon;
      refuseOtherOps(loaded, file);
      return { addon: loaded, file };
    } catch (error) {
      failures.push({ file, error });
    }
  }
  const [first] = failures;
  // All candidates load, and none has these ops.
  if (first && failures.every(({ error }) => error instanceof DsError)) throw first.error;
  const reasons = failures.map(({ file, error }) => `${file}: ${errorMessage(error)}`).join('; ');
  throw new DsError({
    code: 'DS_PLATFORM',
    op: 'native addon',
    expected: override ? `a loadable addon at DS_NATIVE_BINDING=${override}` : 'a loadable addon',
    got:
      `${platformName()}, Node ${process.versions.node}: ` +
      (reasons || `no package ${platformPackage()} and no build`),
    hint: loadHint(reasons),
    cause: first?.error,
  });
}

function threadCount(): number {
  const requestedThreads = Number(process.env.DS_NUM_THREADS ?? process.env.OMP_NUM_THREADS);
  return Number.isInteger(requestedThreads) && requestedThreads > 0
    ? requestedThreads
    : availableParallelism();
}

/**
 * Limits OpenBLAS to one thread, so that its threads do not compete with the addon's pool. OpenBLAS
 * reads its environment when it is first loaded.
 */
function prepareBlas(threads: number): void {
  process.env.OPENBLAS_NUM_THREADS ??= String(threads);
}

/**
 * Returns this process's rank, job and addresses from its environment: see rankFromEnvironment().
 */
export function jobEnvironment(): JobEnvironment {
  return rankFromEnvironment(process.env);
}

/**
 * Returns the variables of the driver's cache of kernels, and this process's number on its node.
 */
export function kernelVariables(): CacheVariables & { LOCAL_RANK?: string | undefined } {
  const { CUDA_CACHE_PATH, CUDA_CACHE_DISABLE, LOCAL_RANK } = process.env;
  return { CUDA_CACHE_PATH, CUDA_CACHE_DISABLE, LOCAL_RANK };
}

/**
 * Returns whether this process stores the matrix algorithms that it times, for later processes:
 * unless DS_ALGORITHM_CACHE is "0".
 */
export function isKeepingAlgorithms(): boolean {
  return process.env.DS_ALGORITHM_CACHE !== '0';
}

/**
 * Switches NVLink multicast of NCCL off, unless the environment sets it. NCCL enables it on systems
 * where it is unavailable, and then hangs.
 */
process.env.NCCL_NVLS_ENABLE ??= '0';

const threads = threadCount();
prepareBlas(threads);

const loaded = load();

/** The loaded addon. Only lib/runtime imports it. */
export const addon: Addon = loaded.addon;
addon.setThreads(threads);
addon.setGpuLibraries(gpuLibraryCandidates(loaded.file).join('\n'));

/** Returns the file of the loaded addon. */
export function addonPath(): string {
  return loaded.file;
}

/**
 * The arguments of an op, in memory that the addon reads: callers write them, then call the op. The
 * last two words are the arguments of allocate() and run().
 */
export const block = new Float64Array(512);
addon.setArguments(block);
