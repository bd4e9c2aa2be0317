// Exports a run or a checkpoint as a Hugging Face folder with its tokenizer, or as a GGUF file.
import { existsSync } from 'node:fs';
import { stat } from 'node:fs/promises';
import { join } from 'node:path';
import {
  type Consolidated,
  type ConsolidateOptions,
  consolidateWithFiles,
  findLatest,
  requireFree,
} from '../checkpoint/index.js';
import { type GgufType, saveGguf } from '../models/gguf/save.js';
import { writeGgufTokenizer } from '../models/gguf/write-tokenizer.js';
import { fromPretrained } from '../models/index.js';
import { saveWithFiles } from '../models/save-weights.js';
import { adapterFolder } from '../peft/adapter-folder.js';
import { argumentError } from '../runtime/input-errors.js';
import { hasTokenizer, isGgufPath } from '../text/gguf-tokenizer.js';
import { tokenizerFilesIn } from '../text/tokenizer-files.js';
import { listCompleteCheckpoints } from './checkpoint-folder.js';

/** The result of exportRun(). */
interface ExportedRun extends Consolidated {
  /** The folder of the exported weights: the run, or one of its checkpoints. */
  source: string;
}

/**
 * Where weights are: a folder, and the tag of a checkpoint in it. `checkpoint` is null for a model.
 */
interface WeightSource {
  folder: string;
  checkpoint: { tag: string | undefined } | null;
}

/**
 * Writes the weights of `dir` and the files of its tokenizer to the new folder `out`. `dir` is one
 * of:
 *
 * - a folder of checkpoints;
 * - a run of a Trainer: its final weights, or else its newest checkpoint;
 * - a Hugging Face model.
 *
 * By default, a checkpoint is exported in fp32 from its master weights; other weights keep their
 * dtype. Rejects as consolidate(), fromPretrained() and saveWeights() do, and with DS_ARGUMENT if
 * `dir` is an adapter.
 */
export async function exportRun(
  dir: string,
  out: string,
  options: ConsolidateOptions,
): Promise<ExportedRun> {
  const { folder: source, checkpoint } = await findSource(dir, options);
  const copies = tokenizerFilesIn(source);
  if (checkpoint) {
    const { tag } = checkpoint;
    const consolidated = await consolidateWithFiles(source, out, { ...options, tag }, copies);
    return { source, ...consolidated };
  }
  const { path } = await requireFree(out);
  const { dtype, maxShardBytes, format = 'hf' } = options;
  const saveOptions = Object.entries({ dtype, maxShardBytes, format }).filter(([, value]) => value);
  const model = await fromPretrained(source);
  const paths = await saveWithFiles(model, out, Object.fromEntries(saveOptions), copies);
  if (isGgufPath(source)) await writeGgufTokenizer(source, path);
  const weights = paths.filter((path) => path.endsWith('.safetensors'));
  const sizes = await Promise.all(weights.map(async (weight) => (await stat(weight)).size));
  const files = paths.map((path) => path.slice(path.lastIndexOf('/') + 1));
  return { source, path, format, files, bytes: sizes.reduce((sum, size) => sum + size, 0) };
}

/**
 * Writes the weights of `dir` and its tokenizer to the GGUF file `out`. exportRun() describes which
 * weights. Rejects as fromPretrained() and saveGguf() do.
 */
export async function exportGguf(
  dir: string,
  out: string,
  type: GgufType,
): Promise<{ source: string; bytes: number; hasTokenizer: boolean }> {
  const { folder: source } = await findSource(dir, {});
  const model = await fromPretrained(source);
  const isComplete = hasTokenizer(source);
  await saveGguf(model, out, { type, ...(isComplete && { tokenizer: source }) });
  return { source, bytes: (await stat(out)).size, hasTokenizer: isComplete };
}

async function findSource(dir: string, { tag, format }: ConsolidateOptions): Promise<WeightSource> {
  if (tag !== undefined) {
    // checkpoint-<step> of a Trainer is itself a folder of checkpoints.
    const tagFolder = join(dir, tag);
    const isFolder = (await findLatest(tagFolder)) !== null;
    return isFolder ? findSource(tagFolder, { format }) : { folder: dir, checkpoint: { tag } };
  }
  if (format !== 'native' && adapterFolder(dir)) {
    const hint = 'ds merge BASE ADAPTER --output DIR writes the merged model.';
    throw argumentError(`export ${dir}`, 'whole weights', 'an adapter', hint);
  }
  if ((await findLatest(dir)) !== null) return { folder: dir, checkpoint: { tag: undefined } };
  if (isGgufPath(dir) || existsSync(join(dir, 'config.json')))
    return { folder: dir, checkpoint: null };
  const newest = (await listCompleteCheckpoints(dir)).at(-1);
  return newest ? findSource(newest.path, { format }) : { folder: dir, checkpoint: { tag } };
}
