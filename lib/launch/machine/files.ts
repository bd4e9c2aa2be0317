// Finds files of an installation: the package of a file, and cache folders.
import { readFileSync, realpathSync, statSync } from 'node:fs';
import { homedir } from 'node:os';
import { dirname, join } from 'node:path';
import { findHubCache } from '../../hub/environment.js';
import { kernelCache } from '../../runtime/gpu-code.js';

/** Returns "name version" of the package that contains a file; null if no package does. */
export function findPackage(file: string): string | null {
  try {
    for (let folder = dirname(realpathSync(file)); folder !== dirname(folder); ) {
      const name = readPackageName(join(folder, 'package.json'));
      if (name) return name;
      folder = dirname(folder);
    }
  } catch {
    // The file does not exist.
  }
  return null;
}

function readPackageName(file: string): string | null {
  try {
    const { name, version } = JSON.parse(readFileSync(file, 'utf8'));
    return name ? `${name} ${version}` : null;
  } catch {
    return null;
  }
}

/** Returns the major version in the name of a library: 13 for libcublasLt.so.13.1.0. */
export function parseMajorVersion(file: string): number | null {
  for (const path of [file, resolveLinks(file)]) {
    const version = /\.so\.(\d+)/.exec(path)?.[1];
    if (version !== undefined) return Number(version);
  }
  return null;
}

function resolveLinks(file: string): string {
  try {
    return realpathSync(file);
  } catch {
    return file;
  }
}

export interface CacheFolder {
  holds: string;
  path: string;
  exists: boolean;
}

/**
 * Returns the folders that the package, the driver and the hub write to, for the given variables.
 */
export function listCacheFolders(env: NodeJS.ProcessEnv = process.env): CacheFolder[] {
  const folders = [
    ['kernels that the driver compiled', kernelCache(env)],
    ['measured rates', join(homedir(), '.cache', 'ds-native')],
    ['models of the hub', findHubCache(env)],
  ] as const;
  return folders.map(([holds, path]) => ({ holds, path, exists: isFolder(path) }));
}

function isFolder(path: string): boolean {
  return statSync(path, { throwIfNoEntry: false })?.isDirectory() ?? false;
}
