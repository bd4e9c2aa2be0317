// Opens the folder of initInference(), a model or an adapter with its base model, and reads its end
// tokens.
import type { JsonObject } from '../../types/json.js';
import { findOrPullFolder } from '../hub/local-folder.js';
import { type CausalLM, fromPretrainedCut } from '../models/index.js';
import type { FolderOptions } from '../models/model-folder.js';
import { PackedLinear } from '../nn/packed-linear.js';
import { adapterFolder, findBaseFolder } from '../peft/adapter-folder.js';
import { loadAdapter, merge, unload } from '../peft/index.js';
import { sharedTarget } from '../peft/lora.js';
import { formatValue } from '../runtime/format-value.js';
import { dataError } from '../runtime/input-errors.js';
import type { Tokenizer } from '../text/index.js';

/** A model, and the folders that may have its tokenizer, in order. */
export interface OpenedModel {
  model: CausalLM;
  folders: readonly string[];
}

/**
 * Opens the model at `source`, a folder or a name on the hub; `cut` may reduce it to the part of
 * this rank. An adapter is loaded into its base model and merged; the whole base model is in memory
 * meanwhile. The adapter is not merged into packed layers, where rounding would lose it, nor into
 * an embedding that is tied to the head. Rejects with DS_CHECKPOINT if the base model is neither a
 * folder nor a name on the hub, and with the errors of fromPretrained() and loadAdapter().
 */
export async function openModelFolder(
  source: string,
  { revision, ...options }: FolderOptions,
  cut: (model: CausalLM) => void,
): Promise<OpenedModel> {
  const dir = await findOrPullFolder('initInference', source, { need: 'model', revision });
  const adapter = adapterFolder(dir);
  if (!adapter) return { model: await fromPretrainedCut(dir, options, cut), folders: [dir] };
  const base = await findBaseFolder(adapter);
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

/**
 * Returns the end tokens of generation_config.json (or else config.json) and of the tokenizer. Both
 * files of a chat model may still name the end token of its base model, so the tokenizer's end
 * token is added. Ignores -1 and ids outside the vocabulary. Source: vLLM. Throws DS_DATA if a file
 * has other values than token ids.
 */
export function readEndTokens(model: CausalLM, tokenizer: Tokenizer | null): number[] {
  const { config, generation } = model.describe() ?? {};
  const configIds = (generation as JsonObject | undefined)?.eos_token_id;
  const eosIds = configIds ?? config?.eos_token_id ?? [];
  const idList = Array.isArray(eosIds) ? eosIds : [eosIds];
  if (!idList.every(Number.isInteger)) {
    const file =
      configIds === undefined || configIds === null ? 'config.json' : 'generation_config.json';
    throw dataError(`${file} eos_token_id`, 'a token id, or a list of ids', formatValue(eosIds));
  }
  const list = [...(idList as number[]), tokenizer?.eosId ?? -1];
  return [...new Set(list.filter((id) => id >= 0 && id < model.vocabSize))];
}
