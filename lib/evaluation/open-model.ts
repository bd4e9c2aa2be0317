// Opens the model of a folder for an evaluation, with its adapter if there is one.
import { findOrPullFolder } from '../hub/local-folder.js';
import { type CausalLM, fromPretrained } from '../models/index.js';
import { type AdapterFolder, adapterFolder, findBaseFolder } from '../peft/adapter-folder.js';
import { loadAdapter } from '../peft/index.js';
import { device as findDevice } from '../runtime/device.js';
import type { DType } from '../runtime/dtype.js';
import { argumentError } from '../runtime/input-errors.js';
import { hasTokenizer } from '../text/gguf-tokenizer.js';

/** Options of openForEvaluation(). */
interface OpenForEvaluationOptions {
  /** Device of the model. Default: a GPU if present, otherwise the CPU. */
  device?: string;
  /** Dtype of the weights. Default: the dtype of the folder. */
  dtype?: DType;
  /** Folder of an adapter in PEFT's format. It is not merged into the weights. */
  adapter?: string;
}

/** A model, and the folder of its tokenizer. */
interface OpenedForEvaluation {
  model: CausalLM;
  /** The adapter's folder, otherwise the model's folder; undefined if neither has a tokenizer. */
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
  const dir = await findOrPullFolder('eval', place, { need: 'model' });
  const adapterInfo = adapterFolder(dir);
  if (adapterInfo && adapter !== undefined) throw twoAdaptersError(adapterInfo);
  const base = adapterInfo ? await findBaseFolder(adapterInfo) : dir;
  const namedAdapter = adapter && (await findOrPullFolder('eval', adapter, { need: 'adapter' }));
  const adapterDir = adapterInfo ? dir : namedAdapter;
  const model = await fromPretrained(base, dtype === undefined ? {} : { dtype });
  if (adapterDir !== undefined) await loadAdapter(model, adapterDir);
  model.to(findDevice(device));
  const folders = adapterDir === undefined ? [base] : [adapterDir, base];
  const tokenizer = folders.find(hasTokenizer);
  return { model, tokenizer };
}

function twoAdaptersError({ path }: AdapterFolder): Error {
  const hint = 'Pass the folder of the base model, and one adapter.';
  return argumentError('evaluate adapter', 'the folder of the base model as the model', path, hint);
}
