// Builds models from Hugging Face folders, by the model_type of their config.json.
import { join } from 'node:path';
import type { JsonObject } from '../../types/json.js';
import { DsError } from '../errors.js';
import { setSourceFolder } from '../nn/source-folder.js';
import {
  type AdapterFolder,
  adapterFolder,
  adapterTask,
  findBaseFolder,
  findLoneAdapter,
  savedModulesIn,
} from '../peft/adapter-folder.js';
import { readAdapterLabels } from '../peft/adapter-labels.js';
import { loadAdapter } from '../peft/index.js';
import { isObject } from '../runtime/is-object.js';
import type { CausalLM } from './causal-lm.js';
import { isCheckpointFolder, readCheckpointModel } from './checkpoint-folder.js';
import type { EncoderOptions } from './encoder/config.js';
import * as encoders from './encoders.js';
import * as classes from './families.js';
import type { GPT2Options } from './gpt2/config.js';
import type { Layout } from './load-weights.js';
import { ModelConfig } from './model-config.js';
import {
  buildFromConfig,
  type Families,
  type Family,
  type FolderModel,
  type FolderOptions,
  locateFolder,
  readPretrained,
} from './model-folder.js';
import type { RotaryOptions } from './rotary/config.js';
import { decoderFamily } from './tasks/decoder-task.js';
import { readSentenceFolder } from './tasks/sentence-folder.js';
import {
  adaptedTask,
  detectTask,
  type HeadTask,
  hasLabels,
  parseLabels,
  requireTask,
  type Task,
} from './tasks/task.js';
import type { TaskModel } from './tasks/task-model.js';

const decoders = Object.values(classes).map(
  ({ family }) => family as Family<CausalLM, PretrainedOptions>,
);
const encoderFamilies = Object.values(encoders).map(({ family }) => family);
/** Encoders are included so that they can be refused by name. */
const families = [
  ...decoders,
  ...encoderFamilies.map((family) => ({ ...family, needsTask: true })),
] as readonly Family<CausalLM, PretrainedOptions>[];

type TaskFamily = Family<TaskModel, TaskPretrainedOptions & { task: HeadTask }>;
const taskFamilies = [
  ...encoderFamilies,
  ...decoders.map(decoderFamily),
] as unknown as TaskFamily[];

/** Returns the families with the head of `task`; for "auto", the head that config.json names. */
function familiesFor(
  task: HeadTask | 'auto',
  savedModules: readonly string[] = [],
): (config: JsonObject) => readonly AnyFamily[] {
  const isAdapted = (name: string): boolean =>
    savedModules.some((module) => `.${name}`.includes(`.${module}.`));
  return (config) => {
    const isEncoder = encoderFamilies.some(({ modelType }) => modelType === config.model_type);
    const headTask =
      task === 'auto' ? (detectTask(config) ?? (isEncoder ? 'embedding' : null)) : task;
    if (headTask === null || headTask === 'causal-lm') return families as unknown as AnyFamily[];
    return taskFamilies.map((family) => ({
      ...family,
      build: (folder, options) => family.build(folder, { ...options, task: headTask }),
      layout: (model) => {
        const { head, ...layout } = family.layout(model as TaskModel);
        return { ...layout, ...(head && { head: { ...head, isAdapted } }) };
      },
    })) as AnyFamily[];
  };
}

type AnyFamily = Family<CausalLM | TaskModel, TaskPretrainedOptions>;

/** Options of this library. A model that lacks a given option throws DS_ARGUMENT. */
export type PretrainedOptions = GPT2Options & RotaryOptions & FolderOptions;

/** Options of a model with the head of a task. They set labels, dropout and the body. */
export type TaskPretrainedOptions = EncoderOptions & RotaryOptions & FolderOptions;

/**
 * Loads a model: a Hugging Face folder (config.json, safetensors in one or several files), or a
 * name on the hub such as "Qwen/Qwen3-0.6B", which is downloaded into the cache once. An existing
 * path wins over a name. model_type selects the class; docs/models.md lists them. `ds export`
 * writes such a folder.
 *
 * Without `task` it is a causal language model. With a task it is a TaskModel: an encoder or the
 * body of a decoder with the head of that task; a head that the folder lacks starts with random
 * values and a notice. "auto" is the task that `architectures` of config.json names. With a task,
 * `dir` may be an adapter in PEFT's format that names its base model: the base gets the labels of
 * the adapter, and all parameters are frozen.
 *
 * Values stay in the files, which remain open, until they are needed. Then they take memory in
 * their stored dtype or options.dtype; initialize() reads one parameter at a time. A folder of
 * training checkpoints (engine.saveCheckpoint) works too: the weights of the latest one are read at
 * once. Rejects with DS_CHECKPOINT if the folder is damaged, has another type or needs an
 * unsupported computation, DS_IO if it cannot be read, DS_HUB if a download fails. Source:
 * transformers' AutoModelForCausalLM.from_pretrained.
 */
export function fromPretrained(
  dir: string,
  options?: PretrainedOptions & { task?: 'causal-lm' },
): Promise<CausalLM>;
export function fromPretrained(
  dir: string,
  options: TaskPretrainedOptions & { task: HeadTask },
): Promise<TaskModel>;
export function fromPretrained(
  dir: string,
  options: TaskPretrainedOptions & { task: 'auto' },
): Promise<CausalLM | TaskModel>;
export async function fromPretrained(
  dir: string,
  given: (PretrainedOptions | TaskPretrainedOptions) & { task?: Task | 'auto' } = {},
): Promise<CausalLM | TaskModel> {
  const { task: taskOption, ...options } = isObject(given) ? given : { ...(given as object) };
  const task =
    taskOption === undefined ? 'causal-lm' : requireTask('fromPretrained task', taskOption);
  if (task === 'causal-lm') {
    return fromPretrainedCut(dir, isObject(given) ? options : given, () => {});
  }
  const readAdapter = readAdapterOf(task);
  if (task !== 'embedding' && task !== 'auto') {
    return readCut(dir, familiesFor(task), options, () => {}, readAdapter);
  }
  const placed = await locateFolder(dir, options);
  const sentences = typeof dir === 'string' ? readSentenceFolder(placed.dir) : null;
  if (!sentences)
    return readCut(placed.dir, familiesFor(task), placed.options, () => {}, readAdapter);
  const inside = join(placed.dir, sentences.path);
  const model = await readCut(inside, familiesFor('embedding'), placed.options, () => {});
  Object.assign(model, { pooling: sentences.pooling, maxLength: sentences.maxLength });
  return model;
}

/** Reads the model of an adapter's folder; null if the adapter has no head of the task. */
type ReadAdapter<Model, Options> = (
  adapter: AdapterFolder,
  options: Options,
) => Promise<Model> | null;

function readAdapterOf(
  task: HeadTask | 'auto',
): ReadAdapter<CausalLM | TaskModel, TaskPretrainedOptions> {
  return (adapter, options) => {
    const adapted = adaptedTask(adapterTask(adapter.path));
    if (adapted === null || (task !== 'auto' && task !== adapted)) return null;
    const base = findBaseFolder(adapter);
    return base.then((base) => fromAdapter(base, adapter.path, adapted, options));
  };
}

/**
 * @internal Opens the model `base` with the head of `task` and the labels of the adapter in `dir`,
 * then loads the adapter. Rejects with the errors of fromPretrained() and loadAdapter().
 */
export async function fromAdapter(
  base: string,
  dir: string,
  task: HeadTask,
  options: TaskPretrainedOptions = {},
): Promise<TaskModel> {
  const saved = hasLabels(task) ? await readAdapterLabels(dir) : null;
  const labels = saved && parseLabels(new ModelConfig(saved.path, saved.config, ''));
  const families = familiesFor(task, savedModulesIn(dir));
  const model = await readCut(base, families, { ...labels, ...options }, () => {});
  return loadAdapter(model as TaskModel, dir);
}

/**
 * @internal Loads a model that `cut` reduces to a rank's part. In addition to the part, at most one
 * tensor of a training checkpoint is in memory.
 */
export async function fromPretrainedCut(
  location: string,
  given: PretrainedOptions,
  cut: (model: CausalLM) => void,
): Promise<CausalLM> {
  return readCut(location, families, given, cut);
}

async function readCut<Model extends FolderModel, Options extends FolderOptions>(
  location: string,
  all: Families<Model, Options>,
  given: Options,
  cut: (model: Model) => void,
  readAdapter: ReadAdapter<Model, Options> = () => null,
): Promise<Model> {
  const { dir, options } = await locateFolder(location, given);
  const adapter = typeof dir === 'string' ? adapterFolder(dir) : null;
  const adapted = adapter && readAdapter(adapter, options);
  if (adapted) return adapted;
  if (adapter) throw findLoneAdapter(adapter);
  const isOurs = typeof dir === 'string' && (await isCheckpointFolder(dir));
  const model = isOurs
    ? await readCheckpointModel(dir, all, options, cut)
    : await readPretrained(dir, all, options);
  if (!isOurs) cut(model);
  setSourceFolder(model, location);
  return model;
}

/**
 * Creates a new model from a config.json (an object, a file or a folder) with transformers' random
 * initialization. Values take memory only when needed, and at ZeRO stage 3 no rank ever has all of
 * them. Throws DS_CHECKPOINT for a config.json that is not supported, DS_IO if it cannot be read,
 * DS_ARGUMENT for an invalid option. Source: transformers' AutoModelForCausalLM.from_config.
 */
export function fromConfig(
  config: JsonObject | string,
  options?: Omit<PretrainedOptions, 'dtype' | 'revision'> & { task?: 'causal-lm' },
): CausalLM;
export function fromConfig(
  config: JsonObject | string,
  options: Omit<TaskPretrainedOptions, 'dtype' | 'revision'> & { task: HeadTask },
): TaskModel;
export function fromConfig(
  config: JsonObject | string,
  options: Omit<TaskPretrainedOptions, 'dtype' | 'revision'> & { task: 'auto' },
): CausalLM | TaskModel;
export function fromConfig(
  config: JsonObject | string,
  { task: taskOption, ...options }: TaskPretrainedOptions & { task?: Task | 'auto' } = {},
): CausalLM | TaskModel {
  const task = taskOption === undefined ? 'causal-lm' : requireTask('fromConfig task', taskOption);
  if (task === 'causal-lm') return buildFromConfig(config, families, options);
  return buildFromConfig(config, familiesFor(task), options);
}

/**
 * @internal Returns the names and layouts of the parameters of `model` in Hugging Face's files.
 * Throws DS_ARGUMENT for a model without a family.
 */
export function layoutOf(model: CausalLM): Layout {
  const type = model.describe().config.model_type;
  const family = decoders.find(({ modelType }) => modelType === type);
  if (family) return family.layout(model);
  const expected = 'a model of nn.models';
  const got = `a ${model.constructor.name}`;
  throw new DsError({ code: 'DS_ARGUMENT', op: 'layoutOf', expected, got });
}
