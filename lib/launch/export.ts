// `ds export`, its older spelling `ds consolidate`, and `ds merge`: write folders of weights for
// other programs.

import { consolidate } from '../checkpoint/index.js';
import type { GgufType } from '../models/gguf/save.js';
import { mergeFolder } from '../models/merge-folder.js';
import { argumentError } from '../runtime/input-errors.js';
import { definedOnly } from '../runtime/options.js';
import { exportGguf, exportRun } from '../trainer/export-run.js';
import { formatBytes } from './byte-size.js';
import type { ConsolidateFlags, ExportFlags, MergeFlags } from './model-options.js';

/** Exports a run and returns a description of the folder. Throws as exportRun() does. */
export async function exportCommand(dir: string, flags: ExportFlags): Promise<string> {
  const { output, tag, dtype, format, maxShardSize: maxShardBytes, gguf } = flags;
  if (gguf !== undefined) return exportGgufCommand(dir, flags, gguf);
  const options = definedOnly({ tag, dtype, format, maxShardBytes });
  const exported = await exportRun(dir, output, options);
  const layout = exported.format === 'hf' ? "Hugging Face's layout" : "this model's own names";
  const title = `${exported.path}: ${formatBytes(exported.bytes)} of weights from ${exported.source}, ${layout}`;
  return [title, ...exported.files.map((file) => `  ${file}`)].join('\n');
}

async function exportGgufCommand(dir: string, flags: ExportFlags, type: GgufType): Promise<string> {
  const { output, tag, dtype, format } = flags;
  const conflicting = Object.entries({ tag, dtype, format }).find(
    ([, value]) => value !== undefined,
  );
  if (conflicting) {
    const hint =
      conflicting[0] === 'tag' ? 'Name the folder of the checkpoint.' : '--gguf sets both.';
    throw argumentError(
      `--${conflicting[0]}`,
      'no such option with --gguf',
      String(conflicting[1]),
      hint,
    );
  }
  const { bytes, source, hasTokenizer } = await exportGguf(dir, output, type);
  const tokenizerNote = hasTokenizer ? '' : ', without a tokenizer';
  return `${output}: ${formatBytes(bytes)} of weights from ${source} as ${type}${tokenizerNote}`;
}

/** Writes the merged model and returns the list of its files. Throws as mergeFolder() does. */
export async function mergeCommand(
  base: string,
  adapter: string,
  { output, maxShardSize }: MergeFlags,
): Promise<string> {
  const files = await mergeFolder({ base, adapter }, output, { maxShardBytes: maxShardSize });
  return [`${base} with ${adapter}:`, ...files.map((file) => `  ${file}`)].join('\n');
}

/**
 * Consolidates a checkpoint and returns a description of the folder. Throws as consolidate() does.
 */
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
