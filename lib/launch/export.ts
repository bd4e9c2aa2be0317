// `ds export` and `ds merge`: folders of weights for other programs.
import type { ConsolidateOptions, ExportDType, ExportFormat } from '../checkpoint/index.js';
import { mergeFolder } from '../models/merge-folder.js';
import { exportRun } from '../trainer/export-run.js';
import { formatBytes } from './byte-size.js';

/** The options of `ds export`. */
export interface ExportFlags {
  output: string;
  tag?: string;
  dtype?: ExportDType;
  maxShardSize: number;
  format?: ExportFormat;
}

/** Writes the folder and returns a description of it. Throws as exportRun(). */
export async function exportCommand(dir: string, flags: ExportFlags): Promise<string> {
  const { output, tag, dtype, format, maxShardSize: maxShardBytes } = flags;
  const given = Object.entries({ tag, dtype, format, maxShardBytes });
  const options = Object.fromEntries(given.filter(([, one]) => one !== undefined));
  const found = await exportRun(dir, output, options as ConsolidateOptions);
  const layout = found.format === 'hf' ? "Hugging Face's layout" : "this model's own names";
  const head = `${found.path}: ${formatBytes(found.bytes)} of weights from ${found.source}, ${layout}`;
  return [head, ...found.files.map((file) => `  ${file}`)].join('\n');
}

/** The options of `ds merge`. */
export interface MergeFlags {
  output: string;
  maxShardSize: number;
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
