// Datasets with samples by number, and their construction in worker threads.

import { isAbsolute } from 'node:path';
import { fileURLToPath, pathToFileURL } from 'node:url';
import { types } from 'node:util';
import { DsError } from '../errors.js';
import type { Device } from '../runtime/device.js';
import { formatValue } from '../runtime/format-value.js';
import { argumentError, dataError, valueError } from '../runtime/input-errors.js';
import { type OptionNames, readOptions } from '../runtime/options.js';
import { requireInteger } from '../runtime/require-number.js';
import { requireType } from '../runtime/require-type.js';
import { errorCode, errorMessage } from '../runtime/system-error.js';
import type { Batched } from './collate.js';

/** Samples by number. get() may return a promise; such a dataset is iterated with `for await`. */
export interface Dataset<Sample> {
  /** Samples. */
  readonly length: number;
  /**
   * Returns sample number `index`, from 0: a number, a typed array, a tensor, or arrays and objects
   * of these.
   */
  get(index: number): Sample | Promise<Sample>;
  /**
   * Returns a whole batch on `device`, equal to the stacked samples; the caller owns its tensors.
   * The loader calls it without a collate function and without workers. Without it, the loader
   * stacks.
   */
  batch?(indices: Uint32Array, device: Device): Batched<Sample>;
  /** How a worker thread builds this dataset; without it only the calling thread can serve it. */
  readonly source?: DatasetSource | undefined;
}

/** Functions do not cross threads: a worker imports `module` and calls its export instead. */
export interface DatasetSource {
  /** Absolute path or file: URL of a CommonJS or ES module. */
  module: string;
  /** The function that returns the dataset, or a promise of it. */
  export: string;
  /** Its arguments: values that structuredClone() copies. Shared memory stays shared. */
  args: readonly unknown[];
}

/** A dataset named instead of passed, so that worker threads can build it. */
export interface WorkerDatasetOptions {
  /**
   * The module: `new URL('./my-dataset.mjs', import.meta.url)` or its text from an ES module, an
   * absolute path such as require.resolve('./my-dataset.js') from a CommonJS one.
   */
  module: string | URL;
  /** The exported function that returns the dataset. Default "default". */
  export?: string;
  /** Arguments of the export, copied to every worker. Default: none. */
  args?: readonly unknown[];
  /** Number of samples. If it is given, the calling thread does not build the dataset. */
  length?: number;
}

const OPTIONS: OptionNames<WorkerDatasetOptions> = {
  module: true,
  export: true,
  args: true,
  length: true,
};

/**
 * Returns a dataset that each worker thread builds, and the calling thread if it needs one. If the
 * calling thread cannot require the module (an ES module, or a top-level await), it imports it:
 * samples are then promises, and `length` is required. Throws DS_ARGUMENT for unknown or invalid
 * options, for a missing module or export, and if the export does not return a dataset.
 */
export function workerDataset<Sample = unknown>(given: WorkerDatasetOptions): Dataset<Sample> {
  const { length, ...options } = readOptions('workerDataset', given, OPTIONS);
  if (length !== undefined) requireInteger('workerDataset length', length, 0);
  return new ModuleDataset<Sample>(sourceOf('workerDataset', options), length);
}

const SOURCE = { module: true, export: true, args: true } as const;

/** The source named by the options of `op`. Throws DS_ARGUMENT. */
export function sourceOf(op: string, given: Omit<WorkerDatasetOptions, 'length'>): DatasetSource {
  const options = readOptions(op, given, SOURCE);
  const module = moduleOf(op, options.module);
  if (options.export !== undefined) requireType(`${op} export`, options.export, 'string');
  if (!Array.isArray(options.args ?? [])) {
    const expected = 'a list of arguments';
    const got = formatValue(options.args);
    throw argumentError(`${op} args`, expected, got);
  }
  return { module, export: options.export ?? 'default', args: options.args ?? [] };
}

/** Returns the path of a file URL; other text unchanged. */
function moduleOf(op: string, given: unknown): string {
  const text = given instanceof URL ? given.href : given;
  const isUrl = typeof text === 'string' && text.startsWith('file:');
  if (isUrl || (typeof text === 'string' && isAbsolute(text))) {
    return isUrl ? fileURLToPath(text) : text;
  }
  throw valueError(
    `${op} module`,
    'the absolute path or file: URL of a module',
    given instanceof URL ? given.href : given,
    "Write new URL('./my-dataset.mjs', import.meta.url), or require.resolve('./my-dataset.js').",
  );
}

class ModuleDataset<Sample> implements Dataset<Sample> {
  private built: Dataset<Sample> | Promise<Dataset<Sample>> | null = null;

  constructor(
    readonly source: DatasetSource,
    private readonly given: number | undefined,
  ) {}

  get length(): number {
    if (this.given !== undefined) return this.given;
    const built = this.here();
    if (!types.isPromise(built)) return built.length;
    built.catch(() => {});
    throw badSource(this.source, 'a module that can be required, or `length` with it', 'neither');
  }

  get(index: number): Sample | Promise<Sample> {
    const built = this.here();
    return types.isPromise(built) ? built.then((set) => set.get(index)) : built.get(index);
  }

  private here(): Dataset<Sample> | Promise<Dataset<Sample>> {
    this.built ??= this.build();
    return this.built;
  }

  private build(): Dataset<Sample> | Promise<Dataset<Sample>> {
    const { source } = this;
    const found = (module: unknown) => {
      const built = callExport(module, source);
      const isLater = types.isPromise(built);
      return isLater
        ? built.then((set) => requireDataset(set, source))
        : requireDataset(built, source);
    };
    try {
      const module = required(source);
      return (types.isPromise(module) ? module.then(found) : found(module)) as Dataset<Sample>;
    } catch (cause) {
      if (cause instanceof DsError) throw cause;
      throw badSource(source, 'a module that can be loaded', cause);
    }
  }
}

/**
 * The module of `source`, or a promise if it cannot be required. Throws errors of the module's
 * code.
 */
export function required({ module }: DatasetSource): unknown {
  try {
    return require(module);
  } catch (error) {
    const code = errorCode(error);
    if (code !== 'ERR_REQUIRE_ESM' && code !== 'ERR_REQUIRE_ASYNC_MODULE') throw error;
    return import(pathToFileURL(module).href);
  }
}

/**
 * The dataset of `source`, in any thread. Throws DS_ARGUMENT if the source returns no dataset, and
 * errors of its code.
 */
export async function buildDataset(source: DatasetSource): Promise<Dataset<unknown>> {
  return requireDataset(await callExport(await required(source), source), source);
}

/** Calls the export of `source`. Throws DS_ARGUMENT if it does not exist. */
export function callExport(module: unknown, source: DatasetSource): unknown {
  const found = (module as Record<string, unknown> | null)?.[source.export];
  if (typeof found === 'function') return found(...source.args);
  throw badSource(source, `a function exported as "${source.export}"`, typeof found);
}

/** Throws DS_ARGUMENT unless `dataset` can be served; an array cannot. */
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

/** The error of a plain `for` over samples that take time. */
export function onlyLater(got: string): DsError {
  return dataError(
    'DataLoader',
    'a dataset with synchronous get()',
    got,
    'Iterate with `for await`.',
  );
}

/** Checks the result of the export. Throws DS_ARGUMENT. */
export function requireDataset(built: unknown, source: DatasetSource): Dataset<unknown> {
  const { length, get } = (built ?? {}) as Partial<Dataset<unknown>>;
  if (Number.isSafeInteger(length) && typeof get === 'function') return built as Dataset<unknown>;
  throw badSource(source, 'a dataset with length and get(index)', typeof built);
}

function badSource(source: DatasetSource, expected: string, got: unknown): DsError {
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
