// The labels of a classifier's adapter. adapter_config.json of PEFT has no key for them.
import { existsSync } from 'node:fs';
import { join } from 'node:path';
import type { JsonObject } from '../../types/json.js';
import { type FileMetadata, SafetensorsFile } from '../checkpoint/index.js';
import { DsError } from '../errors.js';
import type { Module } from '../nn/module.js';
import { isObject } from '../runtime/is-object.js';
import { parseJson } from '../runtime/parse-json.js';
import { readJson, WEIGHTS } from './adapter-json.js';

/** Key of config.json, and of the metadata of the weights. */
const LABELS = 'id2label';
const PROBLEM = 'problem_type';

/** Names of transformers' classes whose head has an output for each label. */
const CLASSIFIER = /For(Sequence|Token)Classification$/;

/**
 * Returns the metadata of the adapter's weights: the labels of a classifier as JSON, and its
 * problem type. PEFT and transformers ignore metadata. A config.json instead would make
 * transformers read a whole model from the folder.
 */
export function labelMetadata(model: Module): FileMetadata {
  const config = model.describe()?.config ?? {};
  const [architecture] = Array.isArray(config.architectures) ? config.architectures : [];
  const { [LABELS]: labels, [PROBLEM]: problem } = config;
  if (!isObject(labels) || !CLASSIFIER.test(String(architecture))) return {};
  return {
    [LABELS]: JSON.stringify(labels),
    ...(typeof problem === 'string' && { [PROBLEM]: problem }),
  };
}

/** Labels in a folder: `config` has the keys of config.json. */
export interface AdapterLabels {
  /** The file with the labels. */
  readonly path: string;
  readonly config: JsonObject;
}

/**
 * Returns the labels of the adapter in `dir`, or null. They are in the metadata of its weights.
 * Other trainers write them into a config.json next to the adapter. Rejects with DS_CHECKPOINT for
 * a damaged file, and with DS_IO for an unreadable one.
 */
export async function readAdapterLabels(dir: string): Promise<AdapterLabels | null> {
  const path = join(dir, WEIGHTS);
  if (existsSync(path)) {
    const file = await SafetensorsFile.open(path);
    await file.close();
    const { [LABELS]: labels, [PROBLEM]: problem } = file.metadata;
    if (labels !== undefined) {
      const config = {
        [LABELS]: parseLabels(path, labels),
        ...(problem && { [PROBLEM]: problem }),
      };
      return { path, config };
    }
  }
  const configPath = join(dir, 'config.json');
  const config = existsSync(configPath) ? await readJson(configPath) : {};
  return isObject(config[LABELS]) ? { path: configPath, config } : null;
}

function parseLabels(path: string, text: string): JsonObject {
  try {
    const labels: unknown = parseJson(text);
    if (isObject<JsonObject>(labels)) return labels;
  } catch {
    // Reported below.
  }
  const op = `${path}: __metadata__ ${LABELS}`;
  throw new DsError({ code: 'DS_CHECKPOINT', op, expected: 'a JSON object', got: text });
}

/** The names that transformers gives to labels without names. */
const UNNAMED = /^LABEL_\d+$/;

/**
 * Throws DS_CHECKPOINT if `model` gives other names to the outputs of the adapter in `dir`: its
 * predictions would have wrong names. Models without names of labels are not checked.
 */
export async function requireLabels(model: Module, dir: string): Promise<void> {
  const { [LABELS]: own } = labelMetadata(model);
  const saved = own === undefined ? null : await readAdapterLabels(dir);
  if (own === undefined || !saved) return;
  const [expected, got] = [namesIn(saved.config[LABELS]), namesIn(parseJson(own))];
  const isNamed = [expected, got].every((names) => names.some((name) => !UNNAMED.test(name)));
  if (!isNamed || expected.join('\n') === got.join('\n')) return;
  throw new DsError({
    code: 'DS_CHECKPOINT',
    op: saved.path,
    expected: `a model with the labels of the adapter: ${expected.join(', ')}`,
    got: got.join(', '),
    hint: 'Open the adapter with fromPretrained(folder, { task }), which takes its labels.',
  });
}

/** Returns the names of id2label in the order of their ids. */
function namesIn(labels: unknown): string[] {
  const entries = Object.entries(isObject(labels) ? labels : {});
  return entries.sort(([a], [b]) => Number(a) - Number(b)).map(([, name]) => String(name));
}
