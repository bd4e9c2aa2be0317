// data.analyze(): measures the difficulty of all samples and writes the files that a curriculum
// reads.
import { existsSync, rmdirSync } from 'node:fs';
import { join } from 'node:path';
import { DsError } from '../errors.js';
import { formatValue } from '../runtime/format-value.js';
import { dataError } from '../runtime/input-errors.js';
import { isObject } from '../runtime/is-object.js';
import { makeFolderNow } from '../runtime/make-folder.js';
import { onDisk } from '../runtime/on-disk.js';
import { namesOf, readOptions } from '../runtime/options.js';
import { requireType } from '../runtime/require-type.js';
import { required } from '../runtime/required.js';
import { absolutePath } from '../runtime/system-error.js';
import { DataLoader, type WorkerThreadOptions } from './data-loader.js';
import type { Dataset } from './dataset.js';
import { writeIndexedLists } from './indexed-lists.js';
import { sortByKey } from './order.js';

/**
 * A measure of a sample's difficulty.
 *
 * - "seqlen": the number of its tokens.
 * - "vocab_rarity": the sum of -log p over its tokens, rounded down. p is the fraction of all
 *   tokens of the dataset that equal the token.
 * - A function: returns an integer of at least 0.
 */
export type DifficultyMetric<Sample> =
  | 'seqlen'
  | 'vocab_rarity'
  | ((sample: Sample, index: number) => number);

/** Options of data.analyze(). */
export interface AnalyzeOptions<Sample, Name extends string = string>
  extends Pick<WorkerThreadOptions, 'numWorkers' | 'workerThread'> {
  /** Metrics by name. Folders and files get these names. */
  metrics: Readonly<Record<Name, DifficultyMetric<Sample>>>;
  /** Folder for the files. It is created if it is missing. */
  folder: string;
  /** Whether existing files of the metrics are replaced. Default: false, which throws DS_IO. */
  overwrite?: boolean;
}

/** The files and the distribution of a metric. */
export interface AnalyzedMetric {
  /** Path of the lists of samples, for the configuration and CurriculumSampler. */
  indexToSamplePath: string;
  /** Path of the values of the lists, for the configuration and CurriculumSampler. */
  indexToMetricPath: string;
  /**
   * percentiles[p] is the largest value among the easiest p percent of samples; [0] is the minimum.
   */
  percentiles: number[];
}

const OP = 'data.analyze';

/** Number of samples that are read at a time. */
const BATCH = 256;

/**
 * Measures all samples of `dataset`. For each metric NAME, writes NAME_index_to_sample and
 * NAME_index_to_metric (.bin and .idx) to FOLDER/NAME. The layout is that of DeepSpeed's
 * DataAnalyzer. Reads all samples once, or twice for "vocab_rarity".
 *
 * - Throws DS_ARGUMENT for invalid options.
 * - Throws DS_DATA if a sample has no tokens, or a value is not a whole number.
 * - Throws DS_IO before any read if files would be replaced or a folder cannot be created; and if a
 *   write fails.
 */
export async function analyze<Sample, Name extends string>(
  dataset: Dataset<Sample>,
  given: AnalyzeOptions<Sample, Name>,
): Promise<Record<Name, AnalyzedMetric>> {
  const options = readOptions(OP, given, namesOf.AnalyzeOptions);
  const folder = absolutePath(requireType(`${OP} folder`, options.folder, 'string'));
  const metrics = readMetrics<Sample>(options.metrics);
  if (!options.overwrite) for (const [name] of metrics) requireUnused(join(folder, name), name);
  const undo = createFolders(metrics.map(([name]) => join(folder, name)));
  const values = await measureSamples(dataset, metrics, options).catch((error) => {
    undo();
    throw error;
  });
  const results: [string, AnalyzedMetric][] = [];
  for (const [m, [name]] of metrics.entries()) {
    results.push([name, await writeMetric(join(folder, name), name, required(values[m]))]);
  }
  return Object.fromEntries(results) as Record<Name, AnalyzedMetric>;
}

/** Returns the values of each metric, by metric and sample. */
async function measureSamples<Sample>(
  dataset: Dataset<Sample>,
  metrics: readonly [string, SampleMetric][],
  { numWorkers, workerThread }: AnalyzeOptions<Sample>,
): Promise<Float64Array[]> {
  const collate = (samples: Sample[]): Sample[] => samples;
  const threads = { numWorkers, workerThread, collate };
  const loader = new DataLoader(dataset, { ...threads, batchSize: BATCH, shuffle: false });
  const values = metrics.map(() => new Float64Array(dataset.length));
  try {
    const surveyed = metrics.filter(([, { survey }]) => survey);
    const visitAll = (visit: (sample: Sample, index: number) => void) =>
      visitSamples(loader, visit);
    if (surveyed.length > 0) {
      await visitAll((sample, index) => {
        for (const [, metric] of surveyed) metric.survey?.(sample, index);
      });
    }
    await visitAll((sample, index) => {
      for (const [m, [name, metric]] of metrics.entries()) {
        const value = requireWhole(name, index, metric.value(sample, index));
        (values[m] as Float64Array)[index] = value;
      }
    });
  } finally {
    await loader.close();
  }
  return values;
}

async function visitSamples<Sample>(
  loader: DataLoader<Sample, Sample[]>,
  visit: (sample: Sample, index: number) => void,
): Promise<void> {
  let index = 0;
  for await (const samples of loader) for (const sample of samples) visit(sample, index++);
}

/** Throws DS_IO if the folder of a metric contains files that would be replaced. */
function requireUnused(folder: string, name: string): void {
  const files = ['index_to_sample', 'index_to_metric'].flatMap((what) =>
    ['.bin', '.idx'].map((end) => join(folder, `${name}_${what}${end}`)),
  );
  const existing = files.find((file) => existsSync(file));
  if (existing === undefined) return;
  throw new DsError({
    code: 'DS_IO',
    op: `${OP} ${existing}`,
    expected: 'no file of this name',
    got: 'an existing file',
    hint: 'Use the existing index, choose another folder, or pass { overwrite: true }.',
  });
}

/**
 * Creates folders. Returns a function that removes the created folders again. If a folder cannot be
 * created, removes the created ones and throws DS_IO.
 */
function createFolders(folders: readonly string[]): () => void {
  const created: string[] = [];
  const undo = (): void => {
    for (const folder of created) removeEmptyFolder(folder);
  };
  for (const folder of folders) {
    if (!existsSync(folder)) created.push(folder);
    const purpose = { op: folder, expected: 'a folder to write the metric to' };
    try {
      onDisk(purpose, () => makeFolderNow(folder));
    } catch (error) {
      undo();
      throw error;
    }
  }
  return undo;
}

/** Removes a folder if it is empty. Ignores all errors. */
function removeEmptyFolder(folder: string): void {
  try {
    rmdirSync(folder);
  } catch {
    // The caller throws the error that caused the removal.
  }
}

/**
 * Writes the files of a metric. Samples are grouped by value and sorted by value; samples of equal
 * value keep their order.
 */
async function writeMetric(
  folder: string,
  name: string,
  values: Float64Array,
): Promise<AnalyzedMetric> {
  const order = sortByKey(values);
  const rising = Float64Array.from(order, (sample) => required(values[sample]));
  const starts = rising.reduce<number[]>((list, value, at) => {
    if (at === 0 || value !== rising[at - 1]) list.push(at);
    return list;
  }, []);
  const lengths = Int32Array.from(starts, (at, i) => (starts[i + 1] ?? order.length) - at);
  const numbers = Float64Array.from(starts, (at) => required(rising[at]));
  const indexToSamplePath = join(folder, `${name}_index_to_sample`);
  const indexToMetricPath = join(folder, `${name}_index_to_metric`);
  await writeIndexedLists(indexToSamplePath, { lengths, numbers: Float64Array.from(order) });
  const ones = new Int32Array(numbers.length).fill(1);
  await writeIndexedLists(indexToMetricPath, { lengths: ones, numbers });
  const percentiles = Array.from({ length: 101 }, (_, percent) => {
    const count = Math.max(1, Math.floor((rising.length * percent) / 100));
    return required(rising[count - 1]);
  });
  return { indexToSamplePath, indexToMetricPath, percentiles };
}

function readMetrics<Sample>(option: unknown): [string, SampleMetric][] {
  const metrics = Object.entries(isObject(option) ? option : {});
  if (metrics.length === 0) {
    const expected = 'an object with at least one metric, by name';
    throw refusedError('metrics', expected, option, 'Pass for example { seqlen: "seqlen" }.');
  }
  return metrics.map(([name, metric]) => {
    if (!/^[\w-]+$/.test(name)) {
      throw refusedError(
        'metrics',
        'names of letters, digits, _ and -',
        name,
        'Rename the metric: its name becomes a file name.',
      );
    }
    if (metric === 'seqlen') return [name, seqlen];
    if (metric === 'vocab_rarity') return [name, new VocabularyRarity()];
    if (typeof metric === 'function') {
      const userMetric = metric as (sample: Sample, index: number) => number;
      return [name, { value: (sample, index) => userMetric(sample as Sample, index) }];
    }
    const expected = '"seqlen", "vocab_rarity" or a function (sample, index) => number';
    throw refusedError(`metrics.${name}`, expected, metric, '');
  });
}

function requireWhole(name: string, index: number, value: unknown): number {
  if (typeof value === 'number' && Number.isSafeInteger(value) && value >= 0) return value;
  const op = `${OP} metrics.${name}, sample ${index}`;
  const hint = 'Scale and round fractions: Math.round(1000 * value).';
  throw dataError(op, 'a whole number of 0 and more', formatValue(value), hint);
}

function refusedError(option: string, expected: string, value: unknown, hint: string): DsError {
  const got = formatValue(value);
  return new DsError({ code: 'DS_ARGUMENT', op: `${OP} ${option}`, expected, got, hint });
}

// The metrics "seqlen" and "vocab_rarity".

/**
 * Computes the metric of a sample. A metric with survey() needs an additional pass over all
 * samples.
 */
interface SampleMetric {
  /** Is called for every sample before the first call of value(). */
  survey?(sample: unknown, index: number): void;
  value(sample: unknown, index: number): unknown;
}

/** Computes the number of tokens of a sample. */
const seqlen: SampleMetric = {
  value: (sample, index) => readTokens(sample, index).length,
};

/** Limit of token numbers, which bounds the memory of the counts. */
const MAX_TOKENS = 2 ** 27;

/**
 * Computes the sum of -log p over the tokens of a sample, rounded down. p is the fraction of all
 * tokens of the dataset that equal the token.
 */
class VocabularyRarity implements SampleMetric {
  private counts = new Float64Array(2 ** 16);
  private total = 0;

  survey(sample: unknown, index: number): void {
    const tokens = readTokens(sample, index);
    for (let i = 0; i < tokens.length; ++i) {
      const token = required(tokens[i]);
      if (token >= this.counts.length) this.grow(token);
      this.counts[token] = required(this.counts[token]) + 1;
    }
    this.total += tokens.length;
  }

  value(sample: unknown, index: number): number {
    const tokens = readTokens(sample, index);
    let sum = 0;
    for (let i = 0; i < tokens.length; ++i) {
      sum -= Math.log(required(this.counts[required(tokens[i])]) / this.total);
    }
    return Math.floor(sum);
  }

  private grow(token: number): void {
    const counts = new Float64Array(2 ** Math.ceil(Math.log2(token + 1)));
    counts.set(this.counts);
    this.counts = counts;
  }
}

/** Names of the fields that may contain a sample's tokens. */
const FIELDS = ['tokens', 'ids', 'input_ids'];

/**
 * Returns the tokens of a sample. Its attention mask may exclude some. Throws DS_DATA if the sample
 * has no tokens.
 */
function readTokens(sample: unknown, index: number): ArrayLike<number> {
  const fields = (sample ?? {}) as Record<string, unknown>;
  const allTokens = isList(sample) ? sample : FIELDS.map((name) => fields[name]).find(isList);
  const mask = fields.attention_mask;
  const tokens =
    allTokens && isList(mask) ? Array.from(allTokens).filter((_, i) => mask[i]) : allTokens;
  if (!tokens) {
    const expected = `tokens: a typed array, alone or as ${FIELDS.join(', ')}`;
    const hint = 'Give a function (sample, index) => number in place of the name of the metric.';
    throw dataError(`data.analyze, sample ${index}`, expected, formatValue(sample), hint);
  }
  for (let i = 0; i < tokens.length; ++i) {
    const token = required(tokens[i]);
    if (Number.isInteger(token) && token >= 0 && token < MAX_TOKENS) continue;
    const location = `data.analyze, sample ${index}, token ${i}`;
    throw dataError(location, `an integer in [0, ${MAX_TOKENS})`, String(token));
  }
  return tokens;
}

function isList(value: unknown): value is ArrayLike<number> {
  return Array.isArray(value) || (ArrayBuffer.isView(value) && !(value instanceof DataView));
}
