// Reads the JSON that lists the files of an inference checkpoint, in DeepSpeed's format. It lists
// whole tensors, or tensors common to all ranks and the parts of each rank. Source: deepspeed's
// SDLoaderFactory.

import { readFile } from 'node:fs/promises';
import { dirname, resolve } from 'node:path';
import type { JsonObject } from '../../../types/json.js';
import { DsError } from '../../errors.js';
import { formatValue } from '../../runtime/format-value.js';
import { isObject } from '../../runtime/is-object.js';
import { parseJson } from '../../runtime/parse-json.js';
import { errorMessage } from '../../runtime/system-error.js';

/** File name that saveParts() writes. */
export const PARTS_LIST = 'ds_inference_config.json';
/** Formats without merging: whole tensors, or parts of the same number of ranks. */
const TYPES: readonly unknown[] = ['ds_model', 'bloom'];
const KEYS = [
  'type',
  'checkpoints',
  'version',
  'parallelization',
  'mp_size',
  'tp_size',
  'base_dir',
  'dtype',
];

/** Files of a checkpoint. */
export interface PartsList {
  /** Path of the list or "checkpoint", for error messages. */
  readonly location: string;
  /** Files with tensors common to all ranks. If `parts` is null, they contain all tensors. */
  readonly whole: readonly string[];
  /** One file per rank with its parts; null if all tensors are whole. */
  readonly parts: readonly string[] | null;
}

/**
 * Reads a list from an object or from the path of its file. `base` is the default folder of the
 * files; without it, the folder of the list. Rejects with DS_CHECKPOINT for an invalid list, and
 * DS_IO.
 */
export async function readPartsList(source: string | object, base: string): Promise<PartsList> {
  const isPath = typeof source === 'string';
  const location = isPath ? source : 'checkpoint';
  const list = isPath ? await readJson(source) : (source as JsonObject);
  const other = Object.keys(list).find((key) => !KEYS.includes(key));
  if (other !== undefined)
    throw damagedError(`${location}: ${other}`, KEYS.join(', '), 'an unknown key');
  const { type, checkpoints, version, parallelization = 'tp', base_dir = '' } = list;
  if (version === undefined || version === null) throw damagedError(location, 'a version', 'none');
  if (!TYPES.includes(typeof type === 'string' ? type.toLowerCase() : type)) {
    const hint =
      'Other formats are not supported: convert the checkpoint to a Hugging Face folder.';
    throw damagedError(`${location}: type`, '"ds_model" or "bloom"', formatValue(type), hint);
  }
  if (parallelization !== 'tp' && parallelization !== 'pp') {
    throw damagedError(
      `${location}: parallelization`,
      '"tp" or "pp"',
      formatValue(parallelization),
    );
  }
  const home = String(base_dir || base || (isPath ? dirname(source) : '.'));
  const filesIn = (key: string, given: unknown): string[] => {
    if (!Array.isArray(given) || given.length === 0)
      throw damagedError(`${location}: ${key}`, 'files', formatValue(given));
    return given.map((name) => resolveFile(`${location}: ${key}`, home, name));
  };
  if (Array.isArray(checkpoints)) {
    return { location, whole: filesIn('checkpoints', checkpoints), parts: null };
  }
  const { tp, non_tp, ...rest } = Object(checkpoints) as Record<string, unknown>;
  if (Object.keys(rest).length > 0 || non_tp === undefined) {
    throw damagedError(
      `${location}: checkpoints`,
      'a list of files, or { tp, non_tp }',
      formatValue(checkpoints),
    );
  }
  return {
    location,
    whole: filesIn('checkpoints.non_tp', non_tp),
    parts: Array.isArray(tp) && tp.length === 0 ? [] : filesIn('checkpoints.tp', tp),
  };
}

function resolveFile(location: string, home: string, name: unknown): string {
  if (typeof name === 'string' && name.endsWith('.safetensors')) return resolve(home, name);
  const hint = 'PyTorch pickle files can run code: convert them to safetensors.';
  throw damagedError(location, 'safetensors files', formatValue(name), hint);
}

async function readJson(path: string): Promise<JsonObject> {
  let text: string;
  try {
    text = await readFile(path, 'utf8');
  } catch (cause) {
    const got = errorMessage(cause);
    throw new DsError({ code: 'DS_IO', op: path, expected: 'a readable file', got, cause });
  }
  try {
    const value: unknown = parseJson(text);
    if (isObject<JsonObject>(value)) return value;
  } catch {} // Reported below.
  throw damagedError(path, 'a JSON object', 'other contents');
}

/** An error of a damaged checkpoint. */
export function damagedError(op: string, expected: string, got: string, hint = ''): DsError {
  return new DsError({ code: 'DS_CHECKPOINT', op, expected, got, hint });
}
