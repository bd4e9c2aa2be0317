// `ds consolidate`, an older spelling of `ds export` for folders of checkpoints.
import { consolidate } from '../checkpoint/index.js';
import { formatBytes } from './byte-size.js';
import type { ConsolidateFlags } from './model-options.js';

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
