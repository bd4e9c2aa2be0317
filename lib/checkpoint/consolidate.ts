// Exports the weights of a checkpoint of many ranks as whole tensors in safetensors files, for
// other libraries or this one.

import type { JsonObject } from '../../types/json.js';
import { DsError } from '../errors.js';
import { cpu } from '../runtime/device.js';
import { type DType, isFloating } from '../runtime/dtype.js';
import { argumentError } from '../runtime/input-errors.js';
import { isObject } from '../runtime/is-object.js';
import { namesOf, readOptions } from '../runtime/options.js';
import { held, Tensor } from '../tensor/index.js';
import { convertValues } from './convert.js';
import { bytesOf, type FreeFolder, requireFree, writeFolder } from './export-folder.js';
import { inFileSlices, readSliceNames, type SliceNames } from './file-slices.js';
import { requirePath } from './folder.js';
import type { TensorRecord } from './manifest.js';
import { Checkpoint, type Section } from './open.js';
import { SafetensorsFile } from './safetensors-file.js';
import type { TensorSource } from './safetensors-writer.js';
import type { TensorInfo } from './shard.js';

/** Dtypes of exported floating-point weights, by their names in configurations. */
export type ExportDType = 'fp32' | 'fp16' | 'bf16';
/**
 * "hf": names, layouts and config.json of Hugging Face's transformers. "native": names and layouts
 * of this library.
 */
export type ExportFormat = 'hf' | 'native';

/** Options of consolidate(). */
export interface ConsolidateOptions {
  /** Tag of the checkpoint. Default: the tag in `latest`. */
  tag?: string;
  /**
   * Dtype of floating-point parameters. Buffers keep their dtype. Default: fp32, which exports the
   * master weights without rounding.
   */
  dtype?: ExportDType;
  /** Maximum bytes of tensors per file; a larger tensor gets its own file. Default: 5e9. */
  maxShardBytes?: number;
  /**
   * Names and layout of the tensors. Default: "hf" if the model has a description for transformers,
   * else "native".
   */
  format?: ExportFormat;
}

/** Result of consolidate(). */
export interface Consolidated {
  /** The folder `out`. */
  path: string;
  /** The format that was written. */
  format: ExportFormat;
  /** Names of the files in the folder. */
  files: string[];
  /** Total bytes of the exported tensors. */
  bytes: number;
}

/** Dtypes of exports as tensor dtypes. */
export const DTYPES: Record<ExportDType, DType> = { fp32: 'f32', fp16: 'f16', bf16: 'bf16' };
const FORMATS: Record<ExportFormat, true> = { hf: true, native: true };
/** Dtypes of exports as values of torch_dtype in config.json. */
export const TORCH_DTYPES: Record<ExportDType, string> = {
  fp32: 'float32',
  fp16: 'float16',
  bf16: 'bfloat16',
};

interface Layout {
  config: JsonObject | null;
  generation: JsonObject | null;
  transposed: ReadonlySet<string>;
  slices: SliceNames;
}

const NATIVE: Layout = { config: null, generation: null, transposed: new Set(), slices: {} };
const MAX_SHARD_BYTES = 5e9;

/**
 * Writes the weights of the checkpoint `dir`/`options.tag` to the new folder `out`. `out` appears
 * when it is complete. If `out` exists and is empty, the file that makes the others readable is
 * written last. Existing files are never replaced or deleted. Host memory in addition to buffers:
 * twice the largest tensor.
 *
 * - Throws DS_CHECKPOINT if the tag is missing, a file is damaged, or "hf" is requested for a model
 *   without a description for transformers.
 * - Throws DS_ARGUMENT for an unknown option, or if `out` contains files.
 * - Throws DS_NONFINITE if the dtype is fp16 and a converted weight is not finite.
 * - Throws DS_IO if a file cannot be read or written.
 *
 * Source: DeepSpeed's zero_to_fp32.
 */
export function consolidate(
  dir: string,
  out: string,
  given: ConsolidateOptions = {},
): Promise<Consolidated> {
  return consolidateWithFiles(dir, out, given, []);
}

/** Runs consolidate(). The folder also receives copies of the files with the paths `copies`. */
export async function consolidateWithFiles(
  dir: string,
  out: string,
  given: ConsolidateOptions,
  copies: readonly string[],
): Promise<Consolidated> {
  const options = readOptions('consolidate', given, namesOf.ConsolidateOptions);
  const { dtype = 'fp32', maxShardBytes = MAX_SHARD_BYTES } = options;
  requirePath('consolidate dir', dir);
  requirePath('consolidate out', out);
  requireChoice('dtype', options.dtype, DTYPES);
  requireChoice('format', options.format, FORMATS);
  const target = await requireFree(out);
  const checkpoint = await Checkpoint.open(dir, options.tag);
  try {
    return await write(checkpoint, target, { ...options, dtype, maxShardBytes, copies });
  } finally {
    await checkpoint.close();
  }
}

interface WriteOptions extends Required<Pick<ConsolidateOptions, 'dtype' | 'maxShardBytes'>> {
  copies: readonly string[];
}

async function write(
  checkpoint: Checkpoint,
  target: FreeFolder,
  options: ConsolidateOptions & WriteOptions,
): Promise<Consolidated> {
  const { dtype, maxShardBytes, copies } = options;
  const format = options.format ?? (checkpoint.description ? 'hf' : 'native');
  const { path, description } = checkpoint;
  const layout = format === 'hf' ? describedLayout(path, description) : NATIVE;
  const sources = [...checkpoint.tensors('model')].flatMap(([name, record]) =>
    sourcesOf(checkpoint, name, record, { dtype: DTYPES[dtype], layout }),
  );
  const config = layout.config && { ...layout.config, torch_dtype: TORCH_DTYPES[dtype] };
  const { generation } = layout;
  const content = { sources, config, generation, copies, maxShardBytes };
  const files = await writeFolder(target, content, () => checkpoint.requireUnchanged());
  return { path: target.path, format, files, bytes: bytesOf(sources) };
}

/**
 * Copies the tensors of the safetensors file `path` to the folder `out`. If `description` is not
 * null, changes names and layouts by it. Returns the names of the written files. Throws DS_IO,
 * DS_CHECKPOINT or DS_NONFINITE.
 */
export async function layOut(
  path: string,
  out: string,
  description: JsonObject | null,
): Promise<string[]> {
  const layout = description ? describedLayout(path, description) : NATIVE;
  const file = await SafetensorsFile.open(path);
  try {
    const sources = file.entries.flatMap((entry) => {
      const to = { dtype: entry.dtype, layout };
      return exportTensors(entry.name, entry, to, (into) => file.readInto(entry, into));
    });
    const content = { sources, config: null, generation: null, maxShardBytes: MAX_SHARD_BYTES };
    return await writeFolder({ path: out, isThere: true }, content);
  } finally {
    await file.close();
  }
}

function requireChoice(option: string, value: string | undefined, choices: object): void {
  if (value === undefined || Object.hasOwn(choices, value)) return;
  throw argumentError(
    `consolidate ${option}`,
    Object.keys(choices).join(', '),
    JSON.stringify(value) ?? typeof value,
  );
}

/**
 * Returns the tensors to write for one saved tensor. Reads the master weights if the dtype changes
 * and the checkpoint has them, else the weights.
 */
function sourcesOf(
  checkpoint: Checkpoint,
  name: string,
  record: TensorRecord,
  { dtype: wanted, layout }: { dtype: DType; layout: Layout },
): TensorSource[] {
  const { shape } = record;
  const dtype = !record.buffer && isFloating(record.dtype) ? wanted : record.dtype;
  const master = `${name}.fp32`;
  const exact = dtype !== record.dtype && checkpoint.tensors('optimizer').has(master);
  const [section, key]: [Section, string] = exact ? ['optimizer', master] : ['model', name];
  const saved: TensorInfo = { dtype: exact ? 'f32' : record.dtype, shape };
  return exportTensors(name, saved, { dtype, layout }, (into) =>
    checkpoint.readInto(section, key, into),
  );
}

/**
 * Returns the tensors to write for one saved tensor in the layout of the files. `read` fills a
 * tensor in the saved layout; it runs when the file is written.
 */
function exportTensors(
  name: string,
  saved: TensorInfo,
  { dtype, layout }: { dtype: DType; layout: Layout },
  read: (into: Tensor) => Promise<void>,
): TensorSource[] {
  const transposed = layout.transposed.has(name);
  const values = async (): Promise<Tensor> => {
    const into = held(() => Tensor.empty(saved.shape, saved.dtype, cpu()));
    try {
      await read(into);
    } catch (error) {
      into.release();
      throw error;
    }
    return convertValues(name, into, { dtype, transposed });
  };
  const shape = transposed ? [...saved.shape].reverse() : saved.shape;
  return inFileSlices({ name, dtype, shape, values }, layout.slices[name]);
}

function describedLayout(path: string, description: JsonObject | null): Layout {
  const { config, generation = null, transposed, pieces: given } = description ?? {};
  const sliceNames = readSliceNames(given);
  const isNames = Array.isArray(transposed) && transposed.every((item) => typeof item === 'string');
  const isWhole = isObject<JsonObject>(config) && isNames && sliceNames !== null;
  if (isWhole && (generation === null || isObject<JsonObject>(generation))) {
    return { config, generation, transposed: new Set(transposed), slices: sliceNames };
  }
  throw new DsError({
    code: 'DS_CHECKPOINT',
    op: path,
    expected: 'a model with a description for transformers',
    got: description ? 'a damaged description' : 'a model without a description',
    hint: 'Implement describe() in your Module before saving, or export the native format.',
  });
}
