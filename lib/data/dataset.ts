// What a loader serves: samples by number, and how a worker thread makes the same samples.
import { DsError } from '../errors.js';
import { type OptionNames, readOptions } from '../runtime/options.js';
import { phrase } from '../runtime/phrase.js';
import { requireInteger } from '../runtime/require-number.js';
import { requireType } from '../runtime/require-type.js';

/** Samples by number. get() may return a promise; such a dataset is iterated with `for await`. */
export interface Dataset<Sample> {
  readonly length: number;
  get(index: number): Sample | Promise<Sample>;
  /** How a worker thread builds this dataset; without it only the calling thread can serve it. */
  readonly source?: DatasetSource;
}

/** Functions do not cross threads: a worker imports `module` and calls its export instead. */
export interface DatasetSource {
  /** Absolute path of a CommonJS or ES module. */
  module: string;
  /** The function that returns the dataset, or a promise of it. */
  export: string;
  /** Its arguments: anything that structuredClone() copies. Shared memory is shared. */
  args: readonly unknown[];
}

/** A dataset named instead of passed, so that worker threads can build it. */
export interface WorkerDatasetOptions {
  /** Absolute path of a module, such as require.resolve('./my-dataset.js'). */
  module: string;
  /** The exported function that returns the dataset. Default "default". */
  export?: string;
  /** Its arguments, copied to every worker. Default none. */
  args?: readonly unknown[];
  /** Samples; when given, the calling thread needs no dataset of its own. */
  length?: number;
}

const OPTIONS: OptionNames<WorkerDatasetOptions> = {
  ...{ module: true, export: true, args: true, length: true },
};

/**
 * A dataset that every worker thread builds for itself, and the calling thread where it needs one.
 * Throws DS_ARGUMENT for unknown or wrong options, and when the module, its export or what that returns is none.
 */
export function workerDataset<Sample = unknown>(given: WorkerDatasetOptions): Dataset<Sample> {
  const options = readOptions('workerDataset', given, OPTIONS);
  requireType('workerDataset module', options.module, 'string');
  if (options.export !== undefined) {
    requireType('workerDataset export', options.export, 'string');
  }
  if (options.length !== undefined) requireInteger('workerDataset length', options.length, 0);
  if (!Array.isArray(options.args ?? [])) {
    const [op, expected] = ['workerDataset args', 'a list of arguments'];
    throw new DsError({ code: 'DS_ARGUMENT', op, expected, got: phrase(options.args) });
  }
  return new ModuleDataset<Sample>(options);
}

class ModuleDataset<Sample> implements Dataset<Sample> {
  readonly source: DatasetSource;
  private built: Dataset<Sample> | null = null;

  constructor(private readonly options: WorkerDatasetOptions) {
    this.source = {
      module: options.module,
      export: options.export ?? 'default',
      args: options.args ?? [],
    };
  }

  get length(): number {
    return this.options.length ?? this.here().length;
  }

  get(index: number): Sample | Promise<Sample> {
    return this.here().get(index);
  }

  private here(): Dataset<Sample> {
    const { source } = this;
    this.built ??= requireDataset(callExport(this.load(), source), source) as Dataset<Sample>;
    return this.built;
  }

  private load(): unknown {
    try {
      return require(this.source.module);
    } catch (cause) {
      throw badSource(this.source, 'a module that can be required', cause);
    }
  }
}

/** Calls the export that `source` names. Throws DS_ARGUMENT when there is none. */
export function callExport(module: unknown, source: DatasetSource): unknown {
  const found = (module as Record<string, unknown> | null)?.[source.export];
  if (typeof found === 'function') return found(...source.args);
  throw badSource(source, `a function exported as "${source.export}"`, typeof found);
}

/** Throws DS_ARGUMENT unless `dataset` can be served; an array cannot. */
export function requireServable(dataset: unknown): void {
  const { length, get } = (dataset ?? {}) as Partial<Dataset<unknown>>;
  if (Number.isSafeInteger(length) && typeof get === 'function') return;
  throw new DsError({
    code: 'DS_ARGUMENT',
    op: 'DataLoader',
    expected: 'a dataset: an object with length and get(index)',
    got: Array.isArray(dataset) ? `an array of ${dataset.length}` : typeof dataset,
    hint: 'For an array: { length: samples.length, get: (i) => samples[i] }.',
  });
}

/** Checks what the export returned. Throws DS_ARGUMENT. */
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
    got: failed ? (got as Error).message : String(got),
    hint: 'An ES module, or one that builds its dataset asynchronously, needs `length` as well.',
    cause: failed ? got : undefined,
  });
}
