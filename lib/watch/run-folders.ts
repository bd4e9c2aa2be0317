// Finds the runs in the folders that the user names.
import { readdirSync, statSync } from 'node:fs';
import { basename, join, resolve } from 'node:path';

import { DsError } from '../errors.js';
import { eventsFile } from './events.js';
import { RunIndex } from './run-index.js';

/** Levels below a given folder in which runs are found. */
const DEPTH = 3;
/** Runs at most; further ones are left out. */
const MAX_RUNS = 64;
/** Folders that are looked into at most. */
const MAX_FOLDERS = 4096;
/** Milliseconds between two searches. */
const FIND_MS = 5000;

/** The runs of the folders. Runs that appear later are found by update(). */
export class RunFolders {
  readonly runs: RunIndex[] = [];
  private readonly known = new Set<string>();
  private readonly roots: readonly { path: string; name: string }[];
  private foundAt = Number.NEGATIVE_INFINITY;

  constructor(dirs: readonly string[]) {
    this.roots = dirs.map((dir) => {
      const path = resolve(dir);
      const name = dir.replace(/\/+$/, '');
      return { path, name: /^\.*$/.test(name) ? basename(path) : name };
    });
    this.find();
  }

  /** Throws DS_IO if a folder holds no run. */
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

  /** Finds new runs and reads what runs have appended. */
  async update(): Promise<void> {
    if (performance.now() - this.foundAt >= FIND_MS) this.find();
    for (const run of this.runs) await run.update();
  }

  private find(): void {
    this.foundAt = performance.now();
    let left = MAX_FOLDERS;
    const visit = (dir: string, name: string, depth: number): void => {
      if (left-- <= 0 || this.runs.length >= MAX_RUNS) return;
      if (!this.known.has(dir) && isFile(eventsFile(dir))) {
        this.known.add(dir);
        this.runs.push(new RunIndex(dir, name));
      }
      if (depth === 0) return;
      for (const inner of foldersIn(dir)) visit(join(dir, inner), `${name}/${inner}`, depth - 1);
    };
    for (const { path, name } of this.roots) visit(path, name, DEPTH);
  }
}

function foldersIn(dir: string): string[] {
  try {
    return readdirSync(dir, { withFileTypes: true })
      .filter((entry) => entry.isDirectory() && !SKIPPED.test(entry.name))
      .map(({ name }) => name)
      .sort();
  } catch {
    return [];
  }
}

/** Folders without runs: hidden ones, checkpoints, packages, and the folder of the log. */
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
