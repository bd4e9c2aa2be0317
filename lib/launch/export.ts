// `ds export`, its older spelling `ds consolidate`, and `ds merge`: folders of weights for other
// programs.

import { consolidate } from '../checkpoint/index.js';
import type { GgufType } from '../models/gguf/save.js';
import { mergeFolder } from '../models/merge-folder.js';
import { argumentError } from '../runtime/input-errors.js';
import { definedOnly } from '../runtime/options.js';
import { exportGguf, exportRun } from '../trainer/export-run.js';
import { formatBytes } from './byte-size.js';
import type { ConsolidateFlags, ExportFlags, MergeFlags } from './model-options.js';

/** Writes the folder and returns a description of it. Throws as exportRun(). */
export async function exportCommand(dir: string, flags: ExportFlags): Promise<string> {
  const { output, tag, dtype, format, maxShardSize: maxShardBytes, gguf } = flags;
  if (gguf !== undefined) return ggufCommand(dir, flags, gguf);
  const options = definedOnly({ tag, dtype, format, maxShardBytes });
  const found = await exportRun(dir, output, options);
  const layout = found.format === 'hf' ? "Hugging Face's layout" : "this model's own names";
  const head = `${found.path}: ${formatBytes(found.bytes)} of weights from ${found.source}, ${layout}`;
  return [head, ...found.files.map((file) => `  ${file}`)].join('\n');
}

async function ggufCommand(dir: string, flags: ExportFlags, type: GgufType): Promise<string> {
  const { output, tag, dtype, format } = flags;
  const given = Object.entries({ tag, dtype, format }).find(([, value]) => value !== undefined);
  if (given) {
    const hint = given[0] === 'tag' ? 'Name the folder of the checkpoint.' : '--gguf sets both.';
    throw argumentError(`--${given[0]}`, 'no such option with --gguf', String(given[1]), hint);
  }
  const { bytes, source, hasTokenizer } = await exportGguf(dir, output, type);
  const words = hasTokenizer ? '' : ', without a tokenizer';
  return `${output}: ${formatBytes(bytes)} of weights from ${source} as ${type}${words}`;
}

/** Writes the merged model and returns the list of its files. Throws as mergeFolder(). */
export async function mergeCommand(
  base: string,
  adapter: string,
  { output, maxShardSize }: MergeFlags,
): Promise<string> {
  const files = await mergeFolder({ base, adapter }, output, { maxShardBytes: maxShardSize });
  return [`${base} with ${adapter}:`, ...files.map((file) => `  ${file}`)].join('\n');
}

/** Writes the folder and returns a description of it. Throws as consolidate(). */
export async function consolidateCommand(
  dir: string,
  out: string,
  { tag, dtype, maxShardSize, format: wanted }: ConsolidateFlags,
): Promise<string> {
  const options = { tag, dtype, maxShardBytes: maxShardSize, format: wanted };
  const { path, format, files, bytes } = await consolidate(dir, out, options);
  const readers = format === 'hf' ? "Hugging Face's layout" : "this model's own names";
  return `${path}: ${formatBytes(bytes)} of ${dtype} weights, ${readers}\n${files.map((file) => `  ${file}`).join('\n')}`;
}
