// Consolidation: a checkpoint of many ranks as whole weights in safetensors, for other libraries or for our own.
import { readdir, writeFile } from 'node:fs/promises';
import { basename, dirname, join, resolve } from 'node:path';

import type { JsonObject } from '../../types/json.js';
import { DsError } from '../errors.js';
import { cpu } from '../runtime/device.js';
import { type DType, dtypeSize, isFloating } from '../runtime/dtype.js';
import { syncPath } from '../runtime/file.js';
import { type OptionNames, requireOptions } from '../runtime/options.js';
import { numel } from '../runtime/view.js';
import { held, Tensor } from '../tensor/index.js';
import { abandon, begin, draftFolder, orDsError, publish } from './commit.js';
import { converted } from './convert.js';
import type { TensorRecord } from './manifest.js';
import { Checkpoint, type Section } from './open.js';
import { type TensorSource, writeSafetensors } from './safetensors-writer.js';
import { CONFIG_FILE, INDEX_FILE, WEIGHTS_FILE } from './weight-files.js';

export type ExportDType = 'fp32' | 'fp16' | 'bf16';
/** "hf": names, layouts and config.json of Hugging Face's transformers; "native": those of our module. */
export type ExportFormat = 'hf' | 'native';

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

export interface Consolidated {
  path: string;
  format: ExportFormat;
  files: string[];
  /** Bytes of tensors. */
  bytes: number;
}

const DTYPES: Record<ExportDType, DType> = { fp32: 'f32', fp16: 'f16', bf16: 'bf16' };
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
 * Writes the weights of the checkpoint `dir`/tag to the new folder `out`, which appears when it is complete. Host
 * memory beyond buffers: twice the largest tensor. Throws DS_CHECKPOINT (no such tag, damage, a model that has not
 * said how transformers knows it), DS_ARGUMENT (an unknown option, an `out` with something in it), DS_NONFINITE, DS_IO.
 * Source: DeepSpeed's zero_to_fp32.
 */
export async function consolidate(
  dir: string,
  out: string,
  options: ConsolidateOptions = {},
): Promise<Consolidated> {
  requireOptions('consolidate', options, OPTIONS);
  const { dtype = 'fp32', maxShardBytes = 5e9 } = options;
  await requireFree(out);
  const checkpoint = await Checkpoint.open(dir, options.tag);
  const format = options.format ?? (checkpoint.description ? 'hf' : 'native');
  const layout =
    format === 'hf' ? describedLayout(checkpoint) : { config: null, transposed: new Set<string>() };
  const sources = Array.from(checkpoint.tensors('model'), ([name, record]) =>
    sourceOf(checkpoint, name, record, { dtype: DTYPES[dtype], layout }),
  );
  const shards = split(sources, maxShardBytes);
  const path = resolve(out);
  const draft = await begin(dirname(path), basename(path));
  const folder = draftFolder(draft);
  try {
    const files = await writeShards(folder, shards);
    if (layout.config) {
      files.push(CONFIG_FILE);
      await writeJson(folder, CONFIG_FILE, { ...layout.config, torch_dtype: TORCH_DTYPES[dtype] });
    }
    await publish(draft, false);
    return { path, format, files, bytes: bytesOf(sources) };
  } catch (error) {
    await abandon(draft);
    throw error;
  }
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

async function requireFree(out: string): Promise<void> {
  const found = await readdir(out).catch((error: NodeJS.ErrnoException) => {
    return error.code === 'ENOENT' ? [] : [error.message];
  });
  if (found.length === 0) return;
  throw new DsError({
    code: 'DS_ARGUMENT',
    op: out,
    expected: 'a folder that does not exist yet',
    got: `one with ${found[0]} in it`,
    hint: 'Choose another name, or delete it first.',
  });
}
