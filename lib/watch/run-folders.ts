// Finds runs in the folders that the user names.
import { readdirSync, statSync } from 'node:fs';
import { basename, join, resolve } from 'node:path';

import { DsError } from '../errors.js';
import { eventsPath } from './events.js';
import { RunIndex } from './run-index.js';

/** Maximum depth of the search below a given folder. */
const MAX_DEPTH = 3;
/** Maximum number of runs; further runs are ignored. */
const MAX_RUNS = 64;
/** Maximum number of folders per search. */
const MAX_FOLDERS = 4096;
/** Milliseconds between two searches. */
const SEARCH_MS = 5000;

/** The runs of the given folders. update() finds runs that appear later. */
export class RunFolders {
  readonly runs: RunIndex[] = [];
  private readonly foundDirs = new Set<string>();
  private readonly roots: readonly { path: string; name: string }[];
  private searchedAt = Number.NEGATIVE_INFINITY;

  constructor(dirs: readonly string[]) {
    this.roots = dirs.map((dir) => {
      const path = resolve(dir);
      const name = dir.replace(/\/+$/, '');
      return { path, name: /^\.*$/.test(name) ? basename(path) : name };
    });
    this.findRuns();
  }

  /** Throws DS_IO if a folder contains no run. */
  requireRuns(): void {
    for (const { path } of this.roots) {
      if (this.runs.some(({ dir }) => dir === path || dir.startsWith(`${path}/`))) continue;
      throw new DsError({
        code: 'DS_IO',
        op: `ds watch ${path}`,
        expected: 'a run: a folder with watch/events.jsonl, or folders of runs',
        got: isFolder(path) ? 'a folder without one' : 'no such folder',
        hint: 'ds train writes it into its --output folder; engine.watch() into its dir.',
      });
    }
  }

  /** Finds new runs and reads new events of all runs. */
  async update(): Promise<void> {
    if (performance.now() - this.searchedAt >= SEARCH_MS) this.findRuns();
    for (const run of this.runs) await run.update();
  }

  private findRuns(): void {
    this.searchedAt = performance.now();
    let left = MAX_FOLDERS;
    const visit = (dir: string, name: string, depth: number): void => {
      if (left-- <= 0 || this.runs.length >= MAX_RUNS) return;
      if (!this.foundDirs.has(dir) && isFile(eventsPath(dir))) {
        this.foundDirs.add(dir);
        this.runs.push(new RunIndex(dir, name));
      }
      if (depth === 0) return;
      for (const inner of listFolders(dir)) visit(join(dir, inner), `${name}/${inner}`, depth - 1);
    };
    for (const { path, name } of this.roots) visit(path, name, MAX_DEPTH);
  }
}

function listFolders(dir: string): string[] {
  try {
    return readdirSync(dir, { withFileTypes: true })
      .filter((entry) => entry.isDirectory() && !SKIPPED.test(entry.name))
      .map(({ name }) => name)
      .sort();
  } catch {
    return [];
  }
}

/**
 * Names of folders without runs: hidden folders, checkpoints, packages, and the folder of the log.
 */
const SKIPPED = /^(\.|checkpoint-\d+$|global_step\d+$|node_modules$|watch$)/;

function isFile(path: string): boolean {
  try {
    return statSync(path).isFile();
  } catch {
    return false;
  }
}

function isFolder(path: string): boolean {
  try {
    return statSync(path).isDirectory();
  } catch {
    return false;
  }
}
