// Checks combinations of `ds train` arguments before anything is loaded.

import { realpathSync } from 'node:fs';
import { basename, dirname } from 'node:path';
import { adapterFolder } from '../../peft/adapter-folder.js';
import { argumentError } from '../../runtime/input-errors.js';
import { required } from '../../runtime/required.js';
import { absolutePath } from '../../runtime/system-error.js';
import { keysOf } from '../../runtime/typed-keys.js';
import { requireOneStage } from '../configuration.js';
import { isSavedFile, requireModelConfig, requireNoModel } from '../weight-folder.js';
import { LORA, QLORA, type TrainArguments } from './arguments.js';
import { readTrainerPart } from './trainer-options.js';

/** Checked arguments. The required ones are present. */
export type CheckedArguments = TrainArguments &
  Required<Pick<TrainArguments, 'train_file' | 'output_dir'>>;

/** Arguments that are valid only with --use_peft. */
const LORA_ARGUMENTS = keysOf({ ...LORA, ...QLORA });

/**
 * Returns `args`. Throws DS_ARGUMENT if an argument is missing or invalid, or if arguments
 * contradict each other. Throws DS_CHECKPOINT if the output folder has a config.json that is no
 * model's.
 */
export function checkArguments(args: TrainArguments): CheckedArguments {
  const { model_name_or_path: dir, config_name: config, train_file: files, output_dir: out } = args;
  const missing = Object.entries({ model: dir ?? config, data: files, output: out });
  for (const [name, value] of missing) {
    if (value === undefined)
      throw argumentError(`--${name}`, 'a value', 'none', `Add --${name} to the command.`);
  }
  if (dir !== undefined && config !== undefined) {
    throw argumentError('--config_name', 'either --config_name or --model', 'both');
  }
  if (dir !== undefined && resolvePath(dir) === resolvePath(required(out))) {
    throw argumentError(
      '--output',
      'a folder other than that of --model, which is not changed',
      dir,
    );
  }
  if (dir !== undefined) requireModel(dir);
  requireLora(args);
  requireSeparateOutput(args, required(out));
  const { options } = readTrainerPart(args, required(out));
  if (options.deepspeed !== undefined) requireOneStage(options.deepspeed);
  return args as CheckedArguments;
}

/** Throws DS_ARGUMENT if the folder contains only an adapter. */
export function requireModel(dir: string): void {
  if (!adapterFolder(dir)) return;
  const hint =
    'Pass the base model. --resume_from_checkpoint continues an adapter; `ds merge` merges both.';
  const expected = 'the folder of a model, with config.json';
  throw argumentError('--model', expected, `${dir}, an adapter of PEFT`, hint);
}

/**
 * Throws DS_ARGUMENT or DS_CHECKPOINT if saving the trained model would overwrite a file that this
 * run reads, or another model.
 */
function requireSeparateOutput(args: TrainArguments, out: string): void {
  const { deepspeed, config_name: config, use_peft: isAdapter } = args;
  if (isAdapter) {
    requireNoModel(out);
    return;
  }
  for (const [name, path] of Object.entries({ deepspeed, config_name: config })) {
    if (typeof path !== 'string') continue;
    const location = resolvePath(path);
    const isWritten = dirname(location) === resolvePath(out) && isSavedFile(basename(location));
    if (!isWritten && location !== resolvePath(out)) continue;
    throw argumentError(
      '--output',
      `a folder other than that of --${name}, which is not changed`,
      path,
    );
  }
  requireModelConfig(out);
}

/** Returns the real path, or the absolute path if it does not exist yet. */
function resolvePath(path: string): string {
  try {
    return realpathSync(path);
  } catch {
    return absolutePath(path);
  }
}

function requireLora(args: TrainArguments): void {
  const { config_name: config, bnb_4bit_quant_type: type = 'nf4' } = args;
  const [orphan] = LORA_ARGUMENTS.filter(
    (name) => args[name] !== undefined && args[name] !== false,
  );
  if (!args.use_peft && orphan)
    throw argumentError(`--${orphan}`, '--lora together with it', 'no --lora');
  if (type !== 'nf4') throw argumentError('--bnb_4bit_quant_type', '"nf4"', JSON.stringify(type));
  if (!args.use_peft) return;
  if (config === undefined) return;
  throw argumentError('--lora', 'a --model with frozen weights', '--config_name');
}
