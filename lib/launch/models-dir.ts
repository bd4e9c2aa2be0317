// The models of --models-dir: names and places.
import { existsSync, readdirSync, statSync } from 'node:fs';
import { join } from 'node:path';
import { isFurtherGguf } from '../checkpoint/index.js';
import { formatValue } from '../runtime/format-value.js';
import { errorMessage } from '../runtime/system-error.js';
import { refuse } from './argument-error.js';

/** A folder with one of these files is a model, or an adapter with its base. */
const MARKS = ['config.json', 'adapter_config.json'];
const GGUF = '.gguf';
/** The end of the first file of a model in several. */
const FIRST = /(?:-00001-of-\d{5})?\.gguf$/;

/**
 * Returns the models in `dir` by name, in the order of names: folders, and GGUF files without
 * their ending. Other entries are left out. Throws DS_ARGUMENT for a folder that cannot be read,
 * without models, or with two models of one name.
 */
export function modelsIn(dir: string): Record<string, string> {
  const found = new Map<string, string>();
  for (const entry of listDir(dir).sort()) {
    const place = join(dir, entry);
    const name = nameOf(entry, place);
    if (name === null) continue;
    if (found.has(name)) {
      refuse('--models-dir', 'a name for each model', `two models ${formatValue(name)}`);
    }
    found.set(name, place);
  }
  if (found.size > 0) return Object.fromEntries(found);
  const got = `none in ${formatValue(dir)}`;
  refuse('--models-dir', 'folders with config.json, or GGUF files', got);
}

function listDir(dir: string): string[] {
  try {
    return readdirSync(dir);
  } catch (cause) {
    refuse('--models-dir', 'a readable folder', errorMessage(cause));
  }
}

/** Null: no model. */
function nameOf(entry: string, place: string): string | null {
  if (entry.startsWith('.')) return null;
  if (MARKS.some((mark) => existsSync(join(place, mark)))) return entry;
  if (isFurtherGguf(entry)) return null;
  const isFile = entry.endsWith(GGUF) && statSync(place, { throwIfNoEntry: false })?.isFile();
  return isFile ? entry.replace(FIRST, '') : null;
}
