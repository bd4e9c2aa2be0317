// Finds the script of every rank, and Node's arguments for it.

import { existsSync, statSync } from 'node:fs';
import { createRequire } from 'node:module';
import { dirname, extname, join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { required } from '../runtime/required.js';

import { closest } from '../runtime/suggestion.js';
import { absolutePath, errorMessage } from '../runtime/system-error.js';
import { refuse } from './argument-error.js';

/** A program as given on the command line. */
export interface Program {
  /** A path; with --module, the name of a module. Both are relative to the current folder. */
  name: string;
  args: readonly string[];
  /** Arguments of Node for this program. Default: chosen by the file's extension. */
  node?: readonly string[];
}

export interface Script extends Program {
  module: boolean;
  /** Whether each rank gets --local_rank=N before `args`. */
  localRankArgument: boolean;
}

const TYPESCRIPT = ['.ts', '.mts', '.cts'];
/**
 * TypeScript loaders that projects install: each returns the file for --import, using a function
 * that finds a package.
 */
const LOADERS: readonly ((find: (name: string) => string) => string)[] = [
  (find) => find('tsx'),
  // The package exports its loader for imports only; require.resolve() does not find it.
  (find) => join(dirname(find('@swc-node/register')), 'esm', 'esm-register.mjs'),
];

/**
 * Returns Node's arguments, including the script's path. Throws DS_ARGUMENT for a script that does
 * not exist, and for TypeScript that neither this Node nor a loader of the script's project can
 * run.
 */
export function createNodeArguments(script: Script): string[] {
  const file = script.module ? requireModule(script.name) : requireScript(script.name);
  if (script.node) return [...script.node, file];
  const typescript = TYPESCRIPT.includes(extname(file));
  return [...(typescript ? chooseTypescriptArguments(file) : []), file];
}

/** Returns the file for `name` in the current folder; undefined if it does not exist. */
function findScript(name: string): string | undefined {
  const file = absolutePath(name);
  return [file, `${file}.js`, `${file}.mjs`, `${file}.cjs`].find(existsSync);
}

/** Throws DS_ARGUMENT if `name` is not a file but similar to one of the launcher's commands. */
export function requireNoCommand(name: string, commands: readonly string[]): void {
  const similar = findScript(name) === undefined ? closest(name, commands) : '';
  if (similar) refuse('script', 'a file that exists', name, `Did you mean "ds ${similar}"?`);
}

function requireScript(name: string): string {
  const file = findScript(name);
  if (file === undefined) {
    return refuse(
      'script',
      'a file that exists',
      name,
      'Check the path; `ds --help` lists the commands.',
    );
  }
  if (statSync(file).isDirectory()) refuse('script', 'a file', `the folder ${name}`);
  return file;
}

function requireModule(name: string): string {
  try {
    return createRequire(absolutePath('script.js')).resolve(name);
  } catch (error) {
    const reason = required(errorMessage(error).split('\n')[0]);
    return refuse('--module', 'a module that can be found from here', `${name} (${reason})`);
  }
}

function chooseTypescriptArguments(file: string): string[] {
  const { typescript } = process.features as { typescript?: string | false };
  if (typescript) return [];
  const flag = '--experimental-strip-types';
  if (process.allowedNodeEnvironmentFlags.has(flag)) return [flag];
  const { resolve: find } = createRequire(file);
  for (const loader of LOADERS) {
    try {
      return ['--import', pathToFileURL(loader(find)).href];
    } catch {
      // The loader is not installed.
    }
  }
  return refuse(
    file,
    'a Node version or a loader that runs TypeScript',
    `Node ${process.versions.node} alone`,
    'Use Node 22.18 or newer, or install tsx (npm install -D tsx), or install @swc-node/register.',
  );
}
