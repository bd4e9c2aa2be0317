// Finds and loads the native addon once. Throws DS_PLATFORM with a fix if it cannot.

import { availableParallelism } from 'node:os';
import { dirname, join } from 'node:path';
import type { Addon } from '../../types/addon.generated.js';
import { DsError } from '../errors.js';
import { opInterface } from './interface.generated.js';
import { type JobEnvironment, rankFromEnvironment } from './job-environment.js';
import { packageRoot } from './package-root.js';
import { errorMessage } from './system-error.js';

/** The file that load() loads. */
export function addonPath(): string {
  const find = require('node-gyp-build') as { path(root: string): string };
  return process.env.DS_NATIVE_BINDING ?? find.path(packageRoot());
}

/** The file of the GPU back end: the addon opens it from its own folder. */
export function gpuLibraryPath(): string {
  return join(dirname(addonPath()), 'libds_cuda.so');
}

/**
 * Loads DS_NATIVE_BINDING if it is set, else the addon that node-gyp-build finds in build/ or
 * prebuilds/.
 */
function load(): Addon {
  const override = process.env.DS_NATIVE_BINDING;
  try {
    if (override) return require(override) as Addon;
    const find = require('node-gyp-build') as (root: string) => Addon;
    return find(packageRoot());
  } catch (cause) {
    const platform = `${process.platform}-${process.arch}`;
    throw new DsError({
      code: 'DS_PLATFORM',
      op: 'native addon',
      expected: override ? `a loadable addon at DS_NATIVE_BINDING=${override}` : 'a loadable addon',
      got: `${platform}, Node ${process.versions.node}: ${errorMessage(cause)}`,
      hint:
        platform === 'linux-x64'
          ? 'Reinstall the package, or build it from source: npm explore @ds/native -- npm run build:native.'
          : '@ds/native ships for Linux x64; on other platforms build it from source (see README).',
      cause,
    });
  }
}

function threadCount(): number {
  const asked = Number(process.env.DS_NUM_THREADS ?? process.env.OMP_NUM_THREADS);
  return Number.isInteger(asked) && asked > 0 ? asked : availableParallelism();
}

/**
 * OpenBLAS reads its environment when it is first loaded. Its own threads must not compete with the
 * addon's pool.
 */
function prepareBlas(threads: number): void {
  process.env.OPENBLAS_NUM_THREADS ??= String(threads);
}

/** This process's place in its job: see rankFromEnvironment(). */
export function jobEnvironment(): JobEnvironment {
  return rankFromEnvironment(process.env);
}

/**
 * NCCL enables NVLink multicast on systems where it is unavailable, and then hangs: it is off
 * unless the environment sets it.
 */
process.env.NCCL_NVLS_ENABLE ??= '0';

const threads = threadCount();
prepareBlas(threads);

/** Ops are called by number: an addon built from other headers would run a different op. */
function requireSameOps(loaded: Addon): Addon {
  const found = loaded.opInterface?.();
  if (found === opInterface) return loaded;
  throw new DsError({
    code: 'DS_PLATFORM',
    op: 'native addon',
    expected: `an addon built for the ops of this package, ${opInterface}`,
    got: `${addonPath()} for ${found ?? 'an earlier version'}`,
    hint: 'Rebuild it: npm run build:native. If DS_NATIVE_BINDING is set, it selects the file.',
  });
}

/** The loaded addon. Only lib/runtime imports it. */
export const addon: Addon = requireSameOps(load());
addon.setThreads(threads);

/**
 * Shared with the addon: an op's arguments, from writing to the call. The last two words are the
 * arguments of allocate() and run().
 */
export const block = new Float64Array(512);
addon.setArguments(block);
