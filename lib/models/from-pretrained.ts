// Model classes for Hugging Face folders, by the model_type of their config.json.
import type { JsonObject } from '../../types/json.js';
import { DsError } from '../errors.js';
import { noteSourceFolder } from '../nn/source-folder.js';
import { adapterAlone, adapterFolder } from '../peft/adapter-folder.js';
import type { CausalLM } from './causal-lm.js';
import { isCheckpointFolder, readCheckpointModel } from './checkpoint-folder.js';
import * as classes from './families.js';
import type { GPT2Options } from './gpt2/config.js';
import type { Layout } from './load-weights.js';
import {
  buildFromConfig,
  type Family,
  type FolderOptions,
  located,
  readPretrained,
} from './model-folder.js';
import type { RotaryOptions } from './rotary/config.js';

const families = Object.values(classes).map(
  ({ family }) => family as Family<CausalLM, PretrainedOptions>,
);

/**
 * Options of this library for every model or some of them. An option that the model lacks throws
 * DS_ARGUMENT.
 */
export type PretrainedOptions = GPT2Options & RotaryOptions & FolderOptions;

/**
 * Loads a causal language model: a Hugging Face folder (config.json, safetensors in one or several
 * files), or a name of the hub such as "Qwen/Qwen3-0.6B", which is downloaded into the cache once.
 * An existing path wins over a name. model_type selects the class; docs/models.md lists them.
 * `ds export` writes such a folder.
 *
 * Values stay in the files, which remain open, until they are needed. Then they take memory in
 * their stored dtype or options.dtype; initialize() reads one parameter at a time. A folder of
 * training checkpoints (engine.saveCheckpoint) works too: the weights of the latest one are read at
 * once. Rejects with DS_CHECKPOINT if the folder is damaged, has another type or needs an
 * unsupported computation, DS_IO if it cannot be read, DS_HUB if a download fails. Source:
 * transformers' AutoModelForCausalLM.from_pretrained.
 */
export async function fromPretrained(
  dir: string,
  options: PretrainedOptions = {},
): Promise<CausalLM> {
  return fromPretrainedCut(dir, options, () => {});
}

/**
 * @internal fromPretrained() of a model that `cut` reduces to a rank's part. At most one tensor of
 * a training checkpoint is in memory in addition to the part.
 */
export async function fromPretrainedCut(
  location: string,
  given: PretrainedOptions,
  cut: (model: CausalLM) => void,
): Promise<CausalLM> {
  const { dir, options } = await located(location, given);
  const adapter = typeof dir === 'string' ? adapterFolder(dir) : null;
  if (adapter) throw adapterAlone(adapter);
  const isOurs = typeof dir === 'string' && (await isCheckpointFolder(dir));
  const model = isOurs
    ? await readCheckpointModel(dir, families, options, cut)
    : await readPretrained(dir, families, options);
  if (!isOurs) cut(model);
  noteSourceFolder(model, location);
  return model;
}

/**
 * Creates a new model from a config.json (an object, a file or a folder) with transformers' random
 * initialization. Values take memory only when needed, and at ZeRO stage 3 no rank ever has all of
 * them. Throws DS_CHECKPOINT, DS_IO, DS_ARGUMENT. Source: transformers'
 * AutoModelForCausalLM.from_config.
 */
export function fromConfig(
  config: JsonObject | string,
  options: Omit<PretrainedOptions, 'dtype' | 'revision'> = {},
): CausalLM {
  return buildFromConfig(config, families, options);
}

/**
 * @internal Names and layouts of the parameters of `model` in Hugging Face's files. Throws
 * DS_ARGUMENT for a model of no family.
 */
export function layoutOf(model: CausalLM): Layout {
  const type = model.describe().config.model_type;
  const family = families.find(({ modelType }) => modelType === type);
  if (family) return family.layout(model);
  const expected = 'a model of nn.models';
  const got = `a ${model.constructor.name}`;
  throw new DsError({ code: 'DS_ARGUMENT', op: 'layoutOf', expected, got });
}
