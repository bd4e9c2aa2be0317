// saveAdapters(): all adapters of a model in PEFT's layout, a folder for each.

import { join } from 'node:path';
import type { Module } from '../nn/module.js';
import { argumentError, valueError } from '../runtime/input-errors.js';
import { readOptions } from '../runtime/options.js';
import { requireNoSurplus, requireType } from '../runtime/require-type.js';
import { saveAdapter } from './adapter-files.js';
import { activeAdapters, adapterNames, DEFAULT_NAME, setAdapter } from './adapter-sets.js';

/** Options of saveAdapters(). */
export interface SaveAdaptersOptions {
  /** Names of the adapters to save. Default: all. */
  selectedAdapters?: readonly string[];
}

/**
 * Saves adapters: "default" to the folder `dir`, each other adapter to the folder of its name below
 * `dir`. The values are copied before the call returns. Resolves with the paths. Rejects as
 * saveAdapter() and setAdapter() do. Source: PEFT's save_pretrained.
 */
export function saveAdapters(
  model: Module,
  dir: string,
  options?: SaveAdaptersOptions,
): Promise<string[]>;
export async function saveAdapters(
  model: Module,
  dir: string,
  given: SaveAdaptersOptions = {},
  ...surplus: readonly unknown[]
): Promise<string[]> {
  const op = 'saveAdapters';
  requireNoSurplus(op, surplus);
  requireType(`${op} dir`, dir, 'string');
  const { selectedAdapters } = readOptions(op, given, { selectedAdapters: true });
  const all = adapterNames(model);
  const names = selectedAdapters ?? all;
  if (!Array.isArray(names)) throw valueError(`${op} selectedAdapters`, 'a list of names', names);
  const unknown = names.find((name) => !all.includes(name));
  if (unknown !== undefined || names.length === 0) {
    throw argumentError(
      op,
      `names of adapters (${all.join(', ') || 'none'})`,
      String(unknown ?? 'none'),
    );
  }
  const active = activeAdapters(model);
  const jobs: Promise<string[]>[] = [];
  try {
    for (const name of names) {
      const isShown = active.length === 1 && active[0] === name;
      if (!isShown || jobs.length > 0) setAdapter(model, name);
      jobs.push(saveAdapter(model, name === DEFAULT_NAME ? dir : join(dir, name)));
    }
  } finally {
    if (activeAdapters(model).join() !== active.join()) setAdapter(model, active);
  }
  const results = await Promise.allSettled(jobs);
  const failed = results.find((result) => result.status === 'rejected');
  if (failed) throw failed.reason;
  return results.flatMap((result) => (result.status === 'fulfilled' ? result.value : []));
}
