// Finds and loads the native addon, once, with a clear sentence when that is impossible.
import { existsSync } from 'node:fs';
import { availableParallelism } from 'node:os';
import { dirname, join } from 'node:path';

import type { Addon } from '../../types/addon.js';
import { DsError } from '../errors.js';

/** The package's root folder, from dist/runtime, lib/runtime or build/js/lib/runtime. */
export function packageRoot(): string {
  let folder = __dirname;
  while (!existsSync(join(folder, 'binding.gyp')) && !existsSync(join(folder, 'prebuilds'))) {
    const parent = dirname(folder);
    if (parent === folder) return join(__dirname, '..', '..');
    folder = parent;
  }
  return folder;
}

/** Loads DS_NATIVE_BINDING if it is set, else what node-gyp-build finds in build/ or prebuilds/. */
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
      got: `${platform}, Node ${process.versions.node}: ${(cause as Error).message}`,
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
 * OpenBLAS reads its environment when it is first loaded. Its own threads would compete with the
 * addon's pool, and its releases before 2023 do not know newer AMD cores, so both are settled first.
 */
function prepareBlas(threads: number): void {
  process.env.OPENBLAS_NUM_THREADS ??= String(threads);
}

const threads = threadCount();
prepareBlas(threads);

/** The loaded addon. Only lib/runtime imports it. */
export const addon: Addon = load();
addon.setThreads(threads);
