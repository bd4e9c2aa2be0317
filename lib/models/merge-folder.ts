// Merges an adapter into its base model, as a folder for any program.
import { requireFree } from '../checkpoint/index.js';
import { findOrPullFolder } from '../hub/local-folder.js';
import { PackedLinear } from '../nn/packed-linear.js';
import { adapterTask } from '../peft/adapter-folder.js';
import { loadAdapter, merge, unload } from '../peft/index.js';
import { argumentError } from '../runtime/input-errors.js';
import { hasTokenizer, isGgufPath } from '../text/gguf-tokenizer.js';
import { tokenizerFilesIn } from '../text/tokenizer-files.js';
import type { CausalLM } from './causal-lm.js';
import { fromAdapter, fromPretrained } from './from-pretrained.js';
import { writeGgufTokenizer } from './gguf/write-tokenizer.js';
import { saveWithFiles } from './save-weights.js';
import { adaptedTask, type HeadTask, PEFT_TASKS } from './tasks/task.js';
import type { TaskModel } from './tasks/task-model.js';

/**
 * @internal Merges the adapter into the model `base` and writes the new folder `out`. Both are
 * folders or names on the hub. The sum is computed in f32, and the weights keep the dtype of the
 * base. The tokenizer comes from the adapter's folder, or else from the base. Returns the paths of
 * the files. Rejects with DS_ARGUMENT for an `out` with files, for quantized layers and for other
 * tasks, and with the errors of fromPretrained(), loadAdapter() and merge().
 */
export async function mergeFolder(
  given: { base: string; adapter: string },
  out: string,
  options: { maxShardBytes?: number } = {},
): Promise<string[]> {
  await requireFree(out);
  const base = await findOrPullFolder('merge', given.base, { need: 'model' });
  const adapter = await findOrPullFolder('merge', given.adapter, { need: 'adapter' });
  const task = findTask(adapter);
  const model = task ? await fromAdapter(base, adapter, task) : await fromPretrained(base);
  requirePlain(base, model);
  if (!task) await loadAdapter(model, adapter);
  merge(model);
  unload(model);
  const hasOwn = hasTokenizer(adapter);
  const files = await saveWithFiles(model, out, options, tokenizerFilesIn(hasOwn ? adapter : base));
  const isGgufTokenizer = !hasOwn && isGgufPath(base);
  return isGgufTokenizer ? [...files, ...(await writeGgufTokenizer(base, out))] : files;
}

/** Returns the task of the adapter; null for language models. Throws DS_ARGUMENT for others. */
function findTask(adapter: string): HeadTask | null {
  const name = adapterTask(adapter);
  const task = adaptedTask(name);
  if (task !== null || name === null || name === 'CAUSAL_LM') return task;
  throw argumentError(
    `merge ${adapter}`,
    `a task_type of ${['CAUSAL_LM', ...Object.values(PEFT_TASKS)].join(', ')}`,
    name,
  );
}

/** Rounding to a few bits would lose most of an update. */
function requirePlain(base: string, model: CausalLM | TaskModel): void {
  const packed = [...model.namedModules()].find(([, module]) => module instanceof PackedLinear);
  if (!packed) return;
  const hint =
    'Rounding to 4 or 8 bits would lose most of the update. Name the folder of the original model; the adapter also works without merging.';
  throw argumentError(
    `merge ${base}`,
    'a model without quantized layers',
    `${packed[0]}, a quantized layer`,
    hint,
  );
}
