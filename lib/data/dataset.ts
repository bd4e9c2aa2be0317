// Datasets with numbered samples, and how worker threads build them.

import { isAbsolute } from 'node:path';
import { fileURLToPath, pathToFileURL } from 'node:url';
import { types } from 'node:util';
import { DsError } from '../errors.js';
import type { Device } from '../runtime/device.js';
import { formatValue } from '../runtime/format-value.js';
import { argumentError, dataError, valueError } from '../runtime/input-errors.js';
import { namesOf, readOptions } from '../runtime/options.js';
import { requireInteger } from '../runtime/require-number.js';
import { requireType } from '../runtime/require-type.js';
import { errorCode, errorMessage } from '../runtime/system-error.js';
import type { Batched } from './collate.js';

/**
 * A dataset with numbered samples. If get() returns promises, the loader must be iterated with `for
 * await`.
 */
export interface Dataset<Sample> {
  /** Number of samples. */
  readonly length: number;
  /**
   * Returns sample `index`, from 0: a number, a typed array or a tensor, or arrays and plain
   * objects of them.
   */
  get(index: number): Sample | Promise<Sample>;
  /**
   * Returns a batch on `device`, equal to the stacked samples. The caller owns its tensors. A
   * loader calls it if it has neither a collate function nor workers. Without it, the loader stacks
   * samples.
   */
  batch?(indices: Uint32Array, device: Device): Batched<Sample>;
  /**
   * How a worker thread builds this dataset. Without it, only the calling thread can read samples.
   */
  readonly source?: DatasetSource | undefined;
}

/**
 * The module and the function that build a dataset. Functions cannot be sent to a thread, so a
 * worker imports `module` and calls its export.
 */
export interface DatasetSource {
  /** Absolute path or file: URL of a CommonJS or ES module. */
  module: string;
  /** Name of the exported function. It returns the dataset, or a promise of it. */
  export: string;
  /**
   * Arguments of the function. structuredClone() must be able to copy them. Shared memory stays
   * shared.
   */
  args: readonly unknown[];
}

/** Options of workerDataset(): the module and the function that build the dataset. */
export interface WorkerDatasetOptions {
  /**
   * The module. In an ES module: `new URL('./my-dataset.mjs', import.meta.url)` or its text. In a
   * CommonJS module: an absolute path such as require.resolve('./my-dataset.js').
   */
  module: string | URL;
  /** Name of the exported function that returns the dataset. Default: "default". */
  export?: string;
  /** Arguments of the function, which are copied to every worker. Default: none. */
  args?: readonly unknown[];
  /** Number of samples. If it is given, the calling thread builds no dataset to learn it. */
  length?: number;
}

/**
 * Returns a dataset that each worker thread builds. The calling thread builds it only if it needs
 * samples or the length.
 *
 * If require() cannot load the module (an ES module, or a top-level await), import() loads it.
 * Samples are then promises on the calling thread, and `length` is required. Throws DS_ARGUMENT if
 * an option is unknown or invalid, the module or export does not exist, or the export returns no
 * dataset.
 */
export function workerDataset<Sample = unknown>(given: WorkerDatasetOptions): Dataset<Sample> {
  const { length, ...options } = readOptions('workerDataset', given, namesOf.WorkerDatasetOptions);
  if (length !== undefined) requireInteger('workerDataset length', length, 0);
  return new ModuleDataset<Sample>(readSource('workerDataset', options), length);
}

const SOURCE = { module: true, export: true, args: true } as const;

/**
 * Returns the source that options of the function `op` describe. Throws DS_ARGUMENT if the path,
 * the name or the list of arguments is invalid.
 */
export function readSource(op: string, given: Omit<WorkerDatasetOptions, 'length'>): DatasetSource {
  const options = readOptions(op, given, SOURCE);
  const module = readModulePath(op, options.module);
  if (options.export !== undefined) requireType(`${op} export`, options.export, 'string');
  if (!Array.isArray(options.args ?? [])) {
    const expected = 'a list of arguments';
    const got = formatValue(options.args);
    throw argumentError(`${op} args`, expected, got);
  }
  return { module, export: options.export ?? 'default', args: options.args ?? [] };
}

/**
 * Converts a file: URL to a path. Returns an absolute path unchanged; throws DS_ARGUMENT otherwise.
 */
function readModulePath(op: string, module: unknown): string {
  const text = module instanceof URL ? module.href : module;
  const isUrl = typeof text === 'string' && text.startsWith('file:');
  if (isUrl || (typeof text === 'string' && isAbsolute(text))) {
    return isUrl ? fileURLToPath(text) : text;
  }
  throw valueError(
    `${op} module`,
    'the absolute path or file: URL of a module',
    module instanceof URL ? module.href : module,
    "Write new URL('./my-dataset.mjs', import.meta.url), or require.resolve('./my-dataset.js').",
  );
}

class ModuleDataset<Sample> implements Dataset<Sample> {
  private built: Dataset<Sample> | Promise<Dataset<Sample>> | null = null;

  constructor(
    readonly source: DatasetSource,
    private readonly knownLength: number | undefined,
  ) {}

  get length(): number {
    if (this.knownLength !== undefined) return this.knownLength;
    const built = this.buildOnce();
    if (!types.isPromise(built)) return built.length;
    built.catch(() => {});
    throw sourceError(this.source, 'a module that require() can load, or `length`', 'neither');
  }

  get(index: number): Sample | Promise<Sample> {
    const built = this.buildOnce();
    return types.isPromise(built) ? built.then((set) => set.get(index)) : built.get(index);
  }

  private buildOnce(): Dataset<Sample> | Promise<Dataset<Sample>> {
    this.built ??= this.build();
    return this.built;
  }

  private build(): Dataset<Sample> | Promise<Dataset<Sample>> {
    const { source } = this;
    const callChecked = (module: unknown) => {
      const built = callExport(module, source);
      const isAsync = types.isPromise(built);
      return isAsync
        ? built.then((set) => requireDataset(set, source))
        : requireDataset(built, source);
    };
    try {
      const module = importModule(source);
      return (
        types.isPromise(module) ? module.then(callChecked) : callChecked(module)
      ) as Dataset<Sample>;
    } catch (cause) {
      if (cause instanceof DsError) throw cause;
      throw sourceError(source, 'a module that can be loaded', cause);
    }
  }
}

/**
 * Returns the module of `source`, or a promise of it if require() cannot load it. Throws the errors
 * of the module's code.
 */
export function importModule({ module }: DatasetSource): unknown {
  try {
    return require(module);
  } catch (error) {
    const code = errorCode(error);
    if (code !== 'ERR_REQUIRE_ESM' && code !== 'ERR_REQUIRE_ASYNC_MODULE') throw error;
    return import(pathToFileURL(module).href);
  }
}

/**
 * Builds the dataset of `source`, in any thread. Throws DS_ARGUMENT if the export returns no
 * dataset, and the errors of its code.
 */
export async function buildDataset(source: DatasetSource): Promise<Dataset<unknown>> {
  return requireDataset(await callExport(await importModule(source), source), source);
}

/** Calls the export of `source`. Throws DS_ARGUMENT if there is no such function. */
export function callExport(module: unknown, source: DatasetSource): unknown {
  const exported = (module as Record<string, unknown> | null)?.[source.export];
  if (typeof exported === 'function') return exported(...source.args);
  throw sourceError(source, `a function exported as "${source.export}"`, typeof exported);
}

/**
 * Throws DS_ARGUMENT unless `dataset` has length and get(index). For example, an array has no
 * get().
 */
export function requireServable(dataset: unknown, op = 'DataLoader'): void {
  const { length, get, iterate } = (dataset ?? {}) as Partial<Dataset<unknown>> & {
    iterate?: unknown;
  };
  if (Number.isSafeInteger(length) && typeof get === 'function') return;
  const hint =
    typeof iterate === 'function'
      ? 'Use data.IterableLoader for datasets with iterate().'
      : 'For an array, pass { length: samples.length, get: (i) => samples[i] }.';
  throw argumentError(
    op,
    'a dataset: an object with length and get(index)',
    Array.isArray(dataset) ? `an array of ${dataset.length}` : typeof dataset,
    hint,
  );
}

/** Returns the error for a `for` loop over samples that are promises: only `for await` can wait. */
export function asynchronousError(got: string): DsError {
  return dataError(
    'DataLoader',
    'a dataset with synchronous get()',
    got,
    'Iterate with `for await`.',
  );
}

/** Returns the result of an export. Throws DS_ARGUMENT if it is not a dataset. */
export function requireDataset(built: unknown, source: DatasetSource): Dataset<unknown> {
  const { length, get } = (built ?? {}) as Partial<Dataset<unknown>>;
  if (Number.isSafeInteger(length) && typeof get === 'function') return built as Dataset<unknown>;
  throw sourceError(source, 'a dataset with length and get(index)', typeof built);
}

function sourceError(source: DatasetSource, expected: string, got: unknown): DsError {
  const failed = got instanceof Error || (got as Error | null)?.message !== undefined;
  return new DsError({
    code: 'DS_ARGUMENT',
    op: `dataset of ${source.module}`,
    expected,
    got: failed ? errorMessage(got) : String(got),
    hint: 'Pass `length` as well if the module is an ES module or builds its dataset asynchronously.',
    cause: failed ? got : undefined,
  });
}
