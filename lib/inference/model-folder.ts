// The model in a folder that initInference() is given: a whole one, or an adapter beside the model
// that it was trained on.
import { type CausalLM, fromPretrainedCut } from '../models/index.js';
import type { FolderOptions } from '../models/model-folder.js';
import { PackedLinear } from '../nn/packed-linear.js';
import { adapterFolder, requireBase } from '../peft/adapter-folder.js';
import { loadAdapter, merge, unload } from '../peft/index.js';
import { sharedTarget } from '../peft/lora.js';

/** A model, and the folders in which its tokenizer may lie, the first of which counts. */
export interface OpenedModel {
  model: CausalLM;
  folders: readonly string[];
}

/**
 * The model of `dir`, of which `cut` may leave a rank's part. An adapter is merged into the model
 * that its file names, all of which is in memory for that; beside layers in few bits, which would
 * round it away, and where it is a table's that is the head as well, it stays by itself. Rejects
 * with DS_CHECKPOINT where that model is no folder here, and as fromPretrained() and loadAdapter()
 * do.
 */
export async function openModelFolder(
  dir: string,
  options: FolderOptions,
  cut: (model: CausalLM) => void,
): Promise<OpenedModel> {
  const adapter = adapterFolder(dir);
  if (!adapter) return { model: await fromPretrainedCut(dir, options, cut), folders: [dir] };
  const base = requireBase(adapter);
  const model = await fromPretrainedCut(base, options, () => {});
  await loadAdapter(model, dir);
  const isPacked = model.modules().some((module) => module instanceof PackedLinear);
  if (!isPacked && !sharedTarget(model)) {
    merge(model);
    unload(model);
  }
  cut(model);
  return { model, folders: [dir, base] };
}
