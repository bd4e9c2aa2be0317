// Creates, opens and saves the model of `ds train`, with adapters if --use_peft is given.

import { DsError } from '../../errors.js';
import {
  type CausalLM,
  fromConfig,
  fromPretrained,
  type HeadTask,
  type LabelOptions,
  type TaskModel,
} from '../../models/index.js';
import { PEFT_TASKS } from '../../models/tasks/task.js';
import { addLora, type LoraOptions, loadAdapter, quantize } from '../../peft/index.js';
import { argumentError } from '../../runtime/input-errors.js';
import { camelCase } from '../../runtime/options.js';
import { required } from '../../runtime/required.js';
import { keysOf } from '../../runtime/typed-keys.js';
import { seed } from '../../tensor/index.js';
import { LORA, type TrainArguments } from './arguments.js';
import { findConfig, findRevision } from './hub-model.js';

/** Returns the folder or name of the model, or of the configuration of a new model. */
export function getModelSource({
  model_name_or_path: dir,
  config_name: config,
}: TrainArguments): string {
  return required(dir ?? config);
}

/**
 * Opens the model to train. Throws DS_CHECKPOINT, DS_IO, and DS_ARGUMENT for invalid options of
 * LoRA.
 */
export async function openModel(args: TrainArguments): Promise<CausalLM> {
  seed(args.seed ?? 42);
  const base = await openBase(args);
  return args.use_peft ? addLora(base, readLoraOptions(args)) : base;
}

/**
 * Opens a model with a head for a task. If the model gets adapters, the whole head is trained.
 * Throws as openModel() does.
 */
export async function openTaskModel(
  args: TrainArguments,
  head: LabelOptions & { task: HeadTask },
): Promise<TaskModel> {
  seed(args.seed ?? 42);
  const { model_name_or_path: dir, gradient_checkpointing: checkpoint } = args;
  const options = {
    ...head,
    ...(checkpoint !== undefined && { activationCheckpointing: checkpoint }),
  };
  const base = dir
    ? await fromPretrained(dir, { ...options, revision: findRevision(dir, args) })
    : fromConfig(await findConfig(args), options);
  if (!args.use_peft) return base;
  const { load_in_4bit: isQuantized, bnb_4bit_use_double_quant: doubleQuant } = args;
  const { modules_to_save: modulesToSave = base.unsavedModules() } = args;
  const lora = { ...readLoraOptions(args), modulesToSave, taskType: PEFT_TASKS[head.task] ?? null };
  return addLora(isQuantized ? quantize(base, { doubleQuant }) : base, lora);
}

/** Opens the model without adapters. */
async function openBase(args: TrainArguments): Promise<CausalLM> {
  const { gradient_checkpointing: checkpoint, router_aux_loss_coef: routers } = args;
  const options = {
    ...(checkpoint !== undefined && { activationCheckpointing: checkpoint }),
    ...(routers !== undefined && { routerAuxLossCoef: routers }),
  };
  const { model_name_or_path: dir } = args;
  const opened = dir
    ? fromPretrained(dir, { ...options, revision: findRevision(dir, args) })
    : (async () => fromConfig(await findConfig(args), options))();
  const model = await opened.catch((error: unknown) => {
    throw isRouterError(error) ? noExpertsError(args) : error;
  });
  if (!dir) return model;
  const { load_in_4bit: isQuantized, load_experts_in_4bit: experts } = args;
  const { bnb_4bit_use_double_quant: doubleQuant } = args;
  return isQuantized ? quantize(model, { doubleQuant, experts }) : model;
}

/**
 * Returns whether the error is that of a model without experts, which rejects routerAuxLossCoef.
 */
const isRouterError = (error: unknown): boolean =>
  error instanceof DsError && error.got === '"routerAuxLossCoef"';

function noExpertsError(args: TrainArguments): DsError {
  const expected = 'a model with experts';
  const hint = 'Leave it out: a model without them has no routers.';
  return argumentError('--router_aux_loss_coef', expected, getModelSource(args), hint);
}

/** Returns the options of addLora(), which checks their values. PEFT's names become camelCase. */
function readLoraOptions(args: TrainArguments): LoraOptions {
  const names = keysOf(LORA);
  return {
    ...Object.fromEntries(names.map((name) => [camelCase(name), args[name]])),
    targetModules: singleOrList(args.target_modules),
    excludeModules: singleOrList(args.exclude_modules),
    baseModelNameOrPath: getModelSource(args),
  };
}

/**
 * Returns a single name as a text, because addLora() reads a text as "all-linear" or as a regular
 * expression, as TRL does. A single plain name is returned as a list: as an expression it would
 * have to match a module's whole path.
 */
function singleOrList(
  names: readonly string[] | undefined,
): string | readonly string[] | undefined {
  const [name, ...more] = names ?? [];
  if (name === undefined || more.length > 0) return names;
  return /^[\w.]+$/.test(name) ? names : name;
}

/** Opens the saved model as a user would. */
export async function loadSavedModel(args: TrainArguments): Promise<CausalLM> {
  const dir = required(args.output_dir);
  return args.use_peft ? loadAdapter(await openBase(args), dir) : fromPretrained(dir);
}
