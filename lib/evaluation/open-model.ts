// Opens the model of a folder for an evaluation, with its adapter if there is one.
import { findOrPullFolder } from '../hub/local-folder.js';
import { fromAdapter } from '../models/from-pretrained.js';
import { type CausalLM, fromPretrained, type HeadTask, type TaskModel } from '../models/index.js';
import type { Module } from '../nn/module.js';
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
interface OpenedForEvaluation<Model> {
  model: Model;
  /** The adapter's folder, otherwise the model's folder; undefined if neither has a tokenizer. */
  tokenizer: string | undefined;
}

/**
 * Opens a model folder, a name on the hub, a folder of training checkpoints, or an adapter that
 * names its base model. Rejects with the errors of fromPretrained() and loadAdapter(); DS_ARGUMENT
 * for two adapters.
 */
export async function openForEvaluation(
  location: string,
  options: OpenForEvaluationOptions = {},
): Promise<OpenedForEvaluation<CausalLM>> {
  const open = async (base: string, adapter: string | undefined, weights: WeightOptions) => {
    const model = await fromPretrained(base, weights);
    return adapter === undefined ? model : loadAdapter(model, adapter);
  };
  return openModel(location, options, open);
}

/**
 * Opens a model with the head of `task`, or an adapter of one, with the labels of the adapter.
 * Rejects as openForEvaluation() does.
 */
export async function openTaskForEvaluation(
  location: string,
  task: HeadTask,
  options: OpenForEvaluationOptions = {},
): Promise<OpenedForEvaluation<TaskModel>> {
  const open = (base: string, adapter: string | undefined, weights: WeightOptions) =>
    adapter === undefined
      ? fromPretrained(base, { ...weights, task })
      : fromAdapter(base, adapter, task, weights);
  return openModel(location, options, open);
}

type WeightOptions = { dtype?: DType };

async function openModel<Model extends Module>(
  location: string,
  { device = 'auto', dtype, adapter }: OpenForEvaluationOptions,
  open: (base: string, adapter: string | undefined, weights: WeightOptions) => Promise<Model>,
): Promise<OpenedForEvaluation<Model>> {
  const dir = await findOrPullFolder('eval', location, { need: 'model' });
  const adapterInfo = adapterFolder(dir);
  if (adapterInfo && adapter !== undefined) throw twoAdaptersError(adapterInfo);
  const base = adapterInfo ? await findBaseFolder(adapterInfo) : dir;
  const namedAdapter = adapter && (await findOrPullFolder('eval', adapter, { need: 'adapter' }));
  const adapterDir = adapterInfo ? dir : namedAdapter;
  const model = await open(base, adapterDir, dtype === undefined ? {} : { dtype });
  model.to(findDevice(device));
  const folders = adapterDir === undefined ? [base] : [adapterDir, base];
  const tokenizer = folders.find(hasTokenizer);
  return { model, tokenizer };
}

function twoAdaptersError({ path }: AdapterFolder): Error {
  const hint = 'Pass the folder of the base model, and one adapter.';
  return argumentError('evaluate adapter', 'the folder of the base model as the model', path, hint);
}
