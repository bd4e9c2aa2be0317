// Consolidation: a checkpoint of many ranks as whole weights in safetensors, for other libraries or for our own.
import { lstat, readdir, writeFile } from 'node:fs/promises';
import { dirname, join, resolve } from 'node:path';

import type { JsonObject } from '../../types/json.js';
import { DsError } from '../errors.js';
import { cpu } from '../runtime/device.js';
import { type DType, dtypeSize, isFloating } from '../runtime/dtype.js';
import { renameExclusive, syncPath } from '../runtime/file.js';
import { type OptionNames, readOptions } from '../runtime/options.js';
import { numel } from '../runtime/view.js';
import { held, Tensor } from '../tensor/index.js';
import { begin, clearFolder, finish } from './commit.js';
import { converted } from './convert.js';
import { orDsError } from './file-error.js';
import { requirePath } from './folder.js';
import type { TensorRecord } from './manifest.js';
import { Checkpoint, type Section } from './open.js';
import { type TensorSource, writeSafetensors } from './safetensors-writer.js';
import { CONFIG_FILE, INDEX_FILE, WEIGHTS_FILE } from './weight-files.js';

/** Floating dtypes of exported weights, as configurations call them. */
export type ExportDType = 'fp32' | 'fp16' | 'bf16';
/** "hf": names, layouts and config.json of Hugging Face's transformers; "native": those of our module. */
export type ExportFormat = 'hf' | 'native';

/** Which checkpoint consolidate() reads, and how it writes the weights. */
export interface ConsolidateOptions {
  /** Default: what `latest` names. */
  tag?: string;
  /** Of floating-point parameters. Default fp32: the master weights, unrounded. Buffers stay as they are. */
  dtype?: ExportDType;
  /** Bytes of tensors in one file, unless one tensor has more. Default 5e9. */
  maxShardBytes?: number;
  /** Default: hf where the model has said how transformers knows it, else native. */
  format?: ExportFormat;
}

const OPTIONS: OptionNames<ConsolidateOptions> = {
  tag: true,
  dtype: true,
  maxShardBytes: true,
  format: true,
};

/** What consolidate() has written. */
export interface Consolidated {
  /** The folder `out`. */
  path: string;
  format: ExportFormat;
  /** Names of the files with tensors, in that folder. */
  files: string[];
  /** Bytes of tensors. */
  bytes: number;
}

/** What an export's draft is called: it lies in `out` where that exists, else beside it. */
const DRAFT = 'export';

const DTYPES: Record<ExportDType, DType> = { fp32: 'f32', fp16: 'f16', bf16: 'bf16' };
const FORMATS: Record<ExportFormat, true> = { hf: true, native: true };
const TORCH_DTYPES: Record<ExportDType, string> = {
  fp32: 'float32',
  fp16: 'float16',
  bf16: 'bfloat16',
};

interface Layout {
  config: JsonObject | null;
  transposed: ReadonlySet<string>;
}

/**
 * Writes the weights of the checkpoint `dir`/tag to the new folder `out`, which appears when it is complete; into an
 * empty folder, the file that makes the others readable comes last. Nothing that exists is replaced or deleted. Host
 * memory beyond buffers: twice the largest tensor. Throws DS_CHECKPOINT (no such tag, damage, a model that has not
 * said how transformers knows it), DS_ARGUMENT (an unknown option, an `out` with something in it), DS_NONFINITE, DS_IO.
 * Source: DeepSpeed's zero_to_fp32.
 */
export async function consolidate(
  dir: string,
  out: string,
  given: ConsolidateOptions = {},
): Promise<Consolidated> {
  const options = readOptions('consolidate', given, OPTIONS);
  const { dtype = 'fp32', maxShardBytes = 5e9 } = options;
  requirePath('consolidate dir', dir);
  requirePath('consolidate out', out);
  requireChoice('dtype', options.dtype, DTYPES);
  requireChoice('format', options.format, FORMATS);
  const path = resolve(out);
  const isThere = await requireFree(path);
  const checkpoint = await Checkpoint.open(dir, options.tag);
  try {
    return await write(checkpoint, { path, isThere }, { ...options, dtype, maxShardBytes });
  } finally {
    await checkpoint.close();
  }
}

async function write(
  checkpoint: Checkpoint,
  { path, isThere }: { path: string; isThere: boolean },
  options: ConsolidateOptions & Required<Pick<ConsolidateOptions, 'dtype' | 'maxShardBytes'>>,
): Promise<Consolidated> {
  const { dtype, maxShardBytes } = options;
  const format = options.format ?? (checkpoint.description ? 'hf' : 'native');
  const layout =
    format === 'hf' ? describedLayout(checkpoint) : { config: null, transposed: new Set<string>() };
  const sources = Array.from(checkpoint.tensors('model'), ([name, record]) =>
    sourceOf(checkpoint, name, record, { dtype: DTYPES[dtype], layout }),
  );
  const shards = split(sources, maxShardBytes);
  const draft = await begin(isThere ? path : dirname(path), DRAFT);
  try {
    const files = await writeShards(draft.folder, shards);
    if (layout.config) {
      files.unshift(CONFIG_FILE);
      const config = { ...layout.config, torch_dtype: TORCH_DTYPES[dtype] };
      await writeJson(draft.folder, CONFIG_FILE, config);
    }
    await syncPath(draft.folder);
    await checkpoint.requireUnchanged();
    await appear(draft.folder, path, isThere ? files : null);
    return { path, format, files, bytes: bytesOf(sources) };
  } finally {
    await finish(draft);
  }
}

/**
 * The folder `from` becomes `path`; where `path` is an empty folder of the user's, `files` move into it one by one, in
 * an order in which the last one makes them a whole. Throws DS_ARGUMENT where something has come there meanwhile.
 */
async function appear(from: string, path: string, files: readonly string[] | null): Promise<void> {
  if (!files) {
    if (!(await renameExclusive(from, path))) throw taken(path, 'something that has just appeared');
    return syncPath(dirname(path));
  }
  const made: string[] = [];
  try {
    for (const file of files) {
      const place = join(path, file);
      if (!(await renameExclusive(join(from, file), place))) throw taken(path, file);
      made.push(file);
    }
  } catch (error) {
    for (const file of made) await renameExclusive(join(path, file), join(from, file));
    throw error;
  }
  await syncPath(path);
}

function requireChoice(option: string, value: string | undefined, choices: object): void {
  if (value === undefined || Object.hasOwn(choices, value)) return;
  throw new DsError({
    code: 'DS_ARGUMENT',
    op: `consolidate ${option}`,
    expected: Object.keys(choices).join(', '),
    got: JSON.stringify(value) ?? typeof value,
  });
}

/** One tensor of the export: master weights where they are wanted and kept, else the weights themselves. */
function sourceOf(
  checkpoint: Checkpoint,
  name: string,
  record: TensorRecord,
  { dtype: wanted, layout }: { dtype: DType; layout: Layout },
): TensorSource {
  const dtype = !record.buffer && isFloating(record.dtype) ? wanted : record.dtype;
  const master = `${name}.fp32`;
  const exact = dtype !== record.dtype && checkpoint.tensors('optimizer').has(master);
  const [section, key]: [Section, string] = exact ? ['optimizer', master] : ['model', name];
  const saved = exact ? 'f32' : record.dtype;
  const transposed = layout.transposed.has(name);
  const values = async (): Promise<Tensor> => {
    const read = held(() => Tensor.empty(record.shape, saved, cpu()));
    try {
      await checkpoint.readInto(section, key, read);
    } catch (error) {
      read.release();
      throw error;
    }
    return converted(name, read, { dtype, transposed });
  };
  const shape = transposed ? [...record.shape].reverse() : record.shape;
  return { name, dtype, shape, values };
}

function describedLayout({ description, path }: Checkpoint): Layout {
  const { config, transposed } = description ?? {};
  const isObject = typeof config === 'object' && config !== null && !Array.isArray(config);
  const isNames = Array.isArray(transposed) && transposed.every((one) => typeof one === 'string');
  if (isObject && isNames) return { config, transposed: new Set(transposed) };
  throw new DsError({
    code: 'DS_CHECKPOINT',
    op: path,
    expected: 'a model that has said how transformers knows it',
    got: description ? 'a description that is damaged' : 'one that has not',
    hint: 'Give your Module a describe() before saving, or export the native format.',
  });
}

/** Files of at most `limit` bytes of tensors, in order. */
function split(sources: readonly TensorSource[], limit: number): TensorSource[][] {
  if (!(limit > 0)) {
    throw new DsError({
      code: 'DS_ARGUMENT',
      op: 'consolidate maxShardBytes',
      expected: 'a positive number of bytes',
      got: String(limit),
    });
  }
  const shards: TensorSource[][] = [[]];
  for (const source of sources) {
    const last = shards.at(-1) as TensorSource[];
    if (last.length > 0 && bytesOf([...last, source]) > limit) shards.push([source]);
    else last.push(source);
  }
  return shards;
}

function bytesOf(sources: readonly TensorSource[]): number {
  return sources.reduce((sum, { shape, dtype }) => sum + numel(shape) * dtypeSize(dtype), 0);
}

async function writeShards(
  folder: string,
  shards: readonly (readonly TensorSource[])[],
): Promise<string[]> {
  if (shards.length === 1) {
    await writeSafetensors(join(folder, WEIGHTS_FILE), shards[0] as TensorSource[]);
    return [WEIGHTS_FILE];
  }
  const number = (n: number): string => String(n).padStart(5, '0');
  const files: string[] = [];
  const places: [string, string][] = [];
  for (const [i, shard] of shards.entries()) {
    const file = `model-${number(i + 1)}-of-${number(shards.length)}.safetensors`;
    await writeSafetensors(join(folder, file), shard);
    files.push(file);
    for (const { name } of shard) places.push([name, file]);
  }
  await writeJson(folder, INDEX_FILE, {
    metadata: { total_size: bytesOf(shards.flat()) },
    weight_map: Object.fromEntries(places),
  });
  return [...files, INDEX_FILE];
}

async function writeJson(folder: string, name: string, value: JsonObject): Promise<void> {
  const path = join(folder, name);
  await orDsError(folder, () => writeFile(path, `${JSON.stringify(value, null, 2)}\n`));
  await syncPath(path);
}

/** Whether the empty folder `path` exists. Throws DS_ARGUMENT where there is anything else; dead exports do not count. */
async function requireFree(path: string): Promise<boolean> {
  const status = await orDsError(path, () =>
    lstat(path).catch((error: NodeJS.ErrnoException) => {
      if (error.code === 'ENOENT') return null;
      throw error;
    }),
  );
  if (!status) return false;
  if (!status.isDirectory()) throw taken(path, status.isFile() ? 'a file' : 'something else');
  await orDsError(path, () => clearFolder(path));
  const [found] = await orDsError(path, () => readdir(path));
  if (found !== undefined) throw taken(path, `one with ${found} in it`);
  return true;
}

function taken(op: string, got: string): DsError {
  return new DsError({
    code: 'DS_ARGUMENT',
    op,
    expected: 'a folder that does not exist yet, or an empty one',
    got,
    hint: 'Choose another name, or move it away first.',
  });
}
