// Loads a model from a training checkpoint of this library, by its saved configuration and weights.

import { access } from 'node:fs/promises';
import { join } from 'node:path';
import type { JsonObject } from '../../types/json.js';
import { Checkpoint, converted, findLatest, ifThere } from '../checkpoint/index.js';
import { DsError } from '../errors.js';
import type { Module } from '../nn/module.js';
import { isFactor } from '../nn/name-mismatch.js';
import { Parameter } from '../nn/parameter.js';
import { cpu } from '../runtime/device.js';
import { isFloating } from '../runtime/dtype.js';
import { required } from '../runtime/required.js';
import { held, Tensor } from '../tensor/index.js';
import { takeOwnPart } from './load-weights.js';
import {
  buildFromConfig,
  type Families,
  type FolderModel,
  type FolderOptions,
} from './model-folder.js';

/** Returns whether `dir` has checkpoints and no Hugging Face model. Rejects with DS_IO. */
export async function isCheckpointFolder(dir: string): Promise<boolean> {
  const config = join(dir, 'config.json');
  if ((await ifThere(config, () => access(config).then(() => true))) !== null) return false;
  return (await findLatest(dir)) !== null;
}

/**
 * Returns the model of the latest checkpoint in `dir`. Its description names the family. The
 * weights have the training dtype or `dtype`; `cut` may reduce the model to a rank's part. Rejects
 * with DS_CHECKPOINT if no family matches or the checkpoint has other tensors, and with DS_IO.
 */
export async function readCheckpointModel<Model extends FolderModel, Options>(
  dir: string,
  families: Families<Model, Options>,
  { dtype, ...options }: Options & FolderOptions,
  cut: (model: Model) => void,
): Promise<Model> {
  const checkpoint = await Checkpoint.open(dir);
  try {
    const { config, generation } = readDescription(checkpoint);
    const model = buildFromConfig(config, families, options as unknown as Options);
    model.cameFrom({ config, generation });
    requireSame(checkpoint, model);
    cut(model);
    for (const [name, target] of Object.entries(model.stateDict())) {
      await fill(checkpoint, name, target, dtype);
    }
    return model;
  } finally {
    await checkpoint.close();
  }
}

interface Description {
  config: JsonObject;
  generation: JsonObject | null;
}

function readDescription(checkpoint: Checkpoint): Description {
  const { description, path } = checkpoint;
  const { config, generation = null } = (description ?? {}) as Partial<Description>;
  if (typeof config === 'object' && config !== null) return { config, generation };
  const isAdapted = [...checkpoint.tensors('model').keys()].some((name) => isFactor(name));
  throw new DsError({
    code: 'DS_CHECKPOINT',
    op: path,
    expected: 'a checkpoint of a model with a description for transformers',
    got: isAdapted ? 'a model with adapters' : 'a checkpoint without it',
    hint: isAdapted
      ? 'Open the base model, call the same peft.addLora(), and fill it with engine.loadCheckpoint(). Then peft.saveAdapter() writes the PEFT format.'
      : 'Build the Module yourself, and fill it with engine.loadCheckpoint().',
  });
}

function requireSame(checkpoint: Checkpoint, model: Module): void {
  const saved = checkpoint.tensors('model');
  const state = model.stateDict();
  const stateNames = new Set(Object.keys(state));
  const hasValues = (name: string): boolean =>
    saved.get(name)?.shape.join() === state[name]?.shape.join();
  const missing = [...stateNames].filter((name) => !hasValues(name));
  const others = [...saved.keys()].filter((name) => !stateNames.has(name));
  const [odd] = [...missing, ...others];
  if (odd === undefined) return;
  throw new DsError({
    code: 'DS_CHECKPOINT',
    op: checkpoint.path,
    expected: `the ${stateNames.size} tensors of the model`,
    got: `${missing.length} missing and ${others.length} unknown tensors, such as ${odd}`,
    hint: 'Load a checkpoint with adapters or without frozen parameters into its original model.',
  });
}

async function fill(
  checkpoint: Checkpoint,
  name: string,
  target: Tensor,
  targetDtype: FolderOptions['dtype'],
): Promise<void> {
  const { shape, dtype } = required(checkpoint.tensors('model').get(name));
  const read = held(() => Tensor.empty(shape, dtype, cpu()));
  try {
    await checkpoint.readInto('model', name, read);
  } catch (error) {
    read.release();
    throw error;
  }
  const to = targetDtype !== undefined && isFloating(dtype) ? targetDtype : dtype;
  const loaded = converted(name, read, { dtype: to, transposed: false });
  const values = target instanceof Parameter ? takeOwnPart(target, loaded) : loaded;
  try {
    if (target instanceof Parameter) target.place(values);
    else target.copy_(values);
  } finally {
    values.release();
  }
}
