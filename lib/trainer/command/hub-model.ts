// Finds models, tokenizers and configurations of `ds train` that are names on the hub.

import { basename } from 'node:path';
import { findOrPullFolder } from '../../hub/local-folder.js';
import { isRemote } from '../../hub/names.js';
import { argumentError } from '../../runtime/input-errors.js';
import { required } from '../../runtime/required.js';
import type { TrainArguments } from './arguments.js';
import { requireModel } from './check-arguments.js';

/** Returns the revision for a name on the hub; undefined for a path. */
export const findRevision = (
  place: string,
  { model_revision: revision }: TrainArguments,
): string | undefined => (isRemote(place) ? revision : undefined);

/**
 * Resolves with the folder of the tokenizer. Rejects with DS_HUB, and with DS_ARGUMENT for a file
 * of --config_name without --tokenizer_name.
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

/** Resolves with the folder of the model, or of the configuration of a new one. */
export async function findModel(args: TrainArguments): Promise<string> {
  const { model_name_or_path: dir } = args;
  if (dir === undefined) return findConfig(args);
  return findOrPullFolder('ds train', dir, { need: 'model', revision: findRevision(dir, args) });
}

/**
 * Downloads the model before the ranks start, once for this machine. Returns arguments for the
 * ranks that fix the commit, because a branch may change between the starts of two ranks. Rejects
 * with DS_HUB, DS_ARGUMENT for an adapter.
 */
export async function pullModel(args: TrainArguments): Promise<string[]> {
  const { model_name_or_path: name } = args;
  if (name === undefined || !isRemote(name)) return [];
  const revision = findRevision(name, args);
  const folder = await findOrPullFolder('ds train', name, { need: 'model', revision });
  requireModel(folder);
  return ['--model_revision', basename(folder)];
}
