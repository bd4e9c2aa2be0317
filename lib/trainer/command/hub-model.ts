// Finds the folders of models, tokenizers and configurations that `ds train` names by folder or by
// name on the hub.

import { basename } from 'node:path';
import { findOrPullFolder } from '../../hub/local-folder.js';
import { isRemote } from '../../hub/names.js';
import { argumentError } from '../../runtime/input-errors.js';
import { required } from '../../runtime/required.js';
import type { TrainArguments } from './arguments.js';
import { requireModel } from './check-arguments.js';

/** Returns the revision if `place` is a name on the hub, undefined if it is a path. */
export const findRevision = (
  place: string,
  { model_revision: revision }: TrainArguments,
): string | undefined => (isRemote(place) ? revision : undefined);

/**
 * Resolves with the folder of the tokenizer. Rejects with DS_HUB if a download fails, and with
 * DS_ARGUMENT if --config_name is a file and --tokenizer_name is missing.
 */
export async function findTokenizerFolder(args: TrainArguments): Promise<string> {
  const { tokenizer_name: tokenizerName, model_name_or_path: dir, config_name: config } = args;
  const place = tokenizerName ?? dir ?? required(config);
  const revision = tokenizerName === undefined ? findRevision(place, args) : undefined;
  if (place === config && basename(place).endsWith('.json')) {
    const hint = 'Add --tokenizer_name: a new model has no tokenizer of its own.';
    const expected = 'the folder or name of a tokenizer';
    throw argumentError('--tokenizer_name', expected, `none, with --config_name ${place}`, hint);
  }
  return findOrPullFolder('ds train', place, { need: 'tokenizer', revision });
}

/** Resolves with the folder or file of the configuration of a new model. Rejects with DS_HUB. */
export async function findConfig(args: TrainArguments): Promise<string> {
  const place = required(args.config_name);
  return findOrPullFolder('ds train', place, {
    need: 'config',
    revision: findRevision(place, args),
  });
}

/**
 * Resolves with the folder of the model, or of the configuration of a new model. Rejects with
 * DS_HUB.
 */
export async function findModel(args: TrainArguments): Promise<string> {
  const { model_name_or_path: dir } = args;
  if (dir === undefined) return findConfig(args);
  return findOrPullFolder('ds train', dir, { need: 'model', revision: findRevision(dir, args) });
}

/**
 * Downloads the model before the ranks start, once for this machine. Resolves with arguments for
 * the ranks that name the commit: a branch may change while the ranks start. Rejects with DS_HUB,
 * or with DS_ARGUMENT if the model is an adapter.
 */
export async function pullModel(args: TrainArguments): Promise<string[]> {
  const { model_name_or_path: name } = args;
  if (name === undefined || !isRemote(name)) return [];
  const revision = findRevision(name, args);
  const folder = await findOrPullFolder('ds train', name, { need: 'model', revision });
  requireModel(folder);
  return ['--model_revision', basename(folder)];
}
