// Reads and writes the files that sentence-transformers adds to a model folder: modules.json and
// the pooling.
import { existsSync, readFileSync } from 'node:fs';
import { writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { makeFolder } from '../../checkpoint/make-folder.js';
import { DsError } from '../../errors.js';
import { formatValue } from '../../runtime/format-value.js';
import { isObject } from '../../runtime/is-object.js';
import { parseJson } from '../../runtime/parse-json.js';
import { POOLING_MODES, type Pooling, type PoolingMode } from './pooling.js';

const MODULES = 'modules.json';
const POOLING = '1_Pooling';

/** The settings of embeddings in a folder of sentence-transformers. */
interface SentenceFolder {
  /** Path of the model's folder in it. */
  readonly path: string;
  /** How hidden states become embeddings. */
  readonly pooling: Pooling;
  /** Maximum tokens of a text; null: the model's limit. */
  readonly maxLength: number | null;
}

type Json = Record<string, unknown>;

function readJson(path: string): unknown {
  try {
    return parseJson(readFileSync(path, 'utf8'));
  } catch (cause) {
    const got = (cause as Error).message;
    throw new DsError({ code: 'DS_CHECKPOINT', op: path, expected: 'JSON', got, cause });
  }
}

function refusalError(op: string, expected: string, got: unknown): DsError {
  return new DsError({ code: 'DS_CHECKPOINT', op, expected, got: formatValue(got) });
}

/**
 * Returns the settings in `dir`; null without modules.json. Throws DS_CHECKPOINT for an unsupported
 * module.
 */
export function readSentenceFolder(dir: string): SentenceFolder | null {
  const location = join(dir, MODULES);
  if (!existsSync(location)) return null;
  const modules = readJson(location);
  if (!Array.isArray(modules)) throw refusalError(location, 'a list of modules', modules);
  let settings: SentenceFolder = {
    path: '',
    pooling: { modes: ['mean_tokens'], normalize: false },
    maxLength: null,
  };
  for (const module of modules) {
    const { type, path = '' } = (isObject(module) ? module : {}) as Json;
    const kind = typeof type === 'string' ? type.slice(type.lastIndexOf('.') + 1) : '';
    const folder = join(dir, String(path));
    if (kind === 'Transformer') {
      settings = { ...settings, path: String(path), maxLength: readLength(folder) };
    } else if (kind === 'Pooling') {
      settings = { ...settings, pooling: { ...settings.pooling, modes: readModes(folder) } };
    } else if (kind === 'Normalize') {
      settings = { ...settings, pooling: { ...settings.pooling, normalize: true } };
    } else {
      throw refusalError(location, 'modules Transformer, Pooling and Normalize', type);
    }
  }
  return settings;
}

function readLength(folder: string): number | null {
  const path = join(folder, 'sentence_bert_config.json');
  if (!existsSync(path)) return null;
  const { max_seq_length: length } = readJson(path) as Json;
  return typeof length === 'number' ? length : null;
}

function readModes(folder: string): PoolingMode[] {
  const path = join(folder, 'config.json');
  const config = readJson(path) as Json;
  const modeText = config.pooling_mode;
  const modeNames = typeof modeText === 'string' ? modeText.split('+') : [];
  const isGiven = (mode: PoolingMode): boolean =>
    config[`pooling_mode_${mode}`] === true ||
    modeNames.some(
      (text) => text === mode || `${text}_token` === mode || `${text}_tokens` === mode,
    );
  const modes = POOLING_MODES.filter(isGiven);
  if (modes.length > 0) return modes;
  throw refusalError(path, `a pooling_mode_ of ${POOLING_MODES.join(', ')}`, config);
}

/** Writes the files that make `dir` a folder of sentence-transformers. */
export async function writeSentenceFolder(
  dir: string,
  { modes, normalize }: Pooling,
  channels: number,
): Promise<void> {
  const module = (idx: number, path: string, name: string) => ({
    idx,
    name: String(idx),
    path,
    type: `sentence_transformers.models.${name}`,
  });
  const modules = [module(0, '', 'Transformer'), module(1, POOLING, 'Pooling')];
  if (normalize) modules.push(module(2, '2_Normalize', 'Normalize'));
  const flags = POOLING_MODES.map((mode) => [`pooling_mode_${mode}`, modes.includes(mode)]);
  const pooling = { word_embedding_dimension: channels, ...Object.fromEntries(flags) };
  await makeFolder(join(dir, POOLING));
  if (normalize) await makeFolder(join(dir, '2_Normalize'));
  const text = (value: unknown): string => `${JSON.stringify(value, null, 2)}\n`;
  await writeFile(join(dir, MODULES), text(modules));
  await writeFile(join(dir, POOLING, 'config.json'), text(pooling));
}
