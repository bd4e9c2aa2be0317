// Opens the model of a folder for an evaluation, with an adapter if there is one.
import { localFolder } from '../hub/local-folder.js';
import { findBaseFolder } from '../inference/model-folder.js';
import { type CausalLM, fromPretrained } from '../models/index.js';
import { type AdapterFolder, adapterFolder } from '../peft/adapter-folder.js';
import { loadAdapter } from '../peft/index.js';
import { device as findDevice } from '../runtime/device.js';
import type { DType } from '../runtime/dtype.js';
import { argumentError } from '../runtime/input-errors.js';
import { hasTokenizer } from '../text/gguf-tokenizer.js';

/** Options of openForEvaluation(). */
export interface OpenForEvaluationOptions {
  /** Default: a GPU if present, else the CPU. */
  device?: string;
  /** Dtype of the weights. Default: that of the folder. */
  dtype?: DType;
  /** Folder of an adapter in PEFT's format. It is not merged into the weights. */
  adapter?: string;
}

/** A model, and the folder of its tokenizer. */
export interface OpenedForEvaluation {
  model: CausalLM;
  /** The adapter's folder, or else that of the model; undefined without a tokenizer. */
  tokenizer: string | undefined;
}

/**
 * Opens a model folder, a name on the hub, a folder of training checkpoints, or an adapter that
 * names its base model. Rejects with the errors of fromPretrained() and loadAdapter(); DS_ARGUMENT
 * for two adapters.
 */
export async function openForEvaluation(
  place: string,
  { device = 'auto', dtype, adapter }: OpenForEvaluationOptions = {},
): Promise<OpenedForEvaluation> {
  const dir = await localFolder('eval', place, { need: 'model' });
  const ownFolder = adapterFolder(dir);
  if (ownFolder && adapter !== undefined) throw twoAdapters(ownFolder);
  const base = ownFolder ? await findBaseFolder(ownFolder) : dir;
  const named = adapter && (await localFolder('eval', adapter, { need: 'adapter' }));
  const over = ownFolder ? dir : named;
  const model = await fromPretrained(base, dtype === undefined ? {} : { dtype });
  if (over !== undefined) await loadAdapter(model, over);
  model.to(findDevice(device));
  const folders = over === undefined ? [base] : [over, base];
  const tokenizer = folders.find(hasTokenizer);
  return { model, tokenizer };
}

function twoAdapters({ path }: AdapterFolder): Error {
  const hint = 'Pass the folder of the base model, and one adapter.';
  return argumentError('evaluate adapter', 'the folder of the base model as the model', path, hint);
}
