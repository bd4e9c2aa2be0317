// Finds the models in the folder of --models-dir.
import { existsSync, readdirSync, statSync } from 'node:fs';
import { join } from 'node:path';
import { isFurtherGguf } from '../checkpoint/index.js';
import { formatValue } from '../runtime/format-value.js';
import { errorMessage } from '../runtime/system-error.js';
import { refuse } from './argument-error.js';

/** Files that mark a folder as a model, or as an adapter with its base. */
const MODEL_FILES = ['config.json', 'adapter_config.json'];
const GGUF = '.gguf';
/** End of the name of a model's first file, if there are several. */
const FIRST_PART = /(?:-00001-of-\d{5})?\.gguf$/;

/**
 * Returns the paths of the models in `dir` by name, in order of name: folders, and GGUF files
 * without their extension. Other entries are skipped. Throws DS_ARGUMENT for a folder that cannot
 * be read, without models, or with two models of one name.
 */
export function findModels(dir: string): Record<string, string> {
  const models = new Map<string, string>();
  for (const entry of readFolder(dir).sort()) {
    const path = join(dir, entry);
    const name = findModelName(entry, path);
    if (name === null) continue;
    if (models.has(name)) {
      refuse('--models-dir', 'a name for each model', `two models ${formatValue(name)}`);
    }
    models.set(name, path);
  }
  if (models.size > 0) return Object.fromEntries(models);
  const got = `none in ${formatValue(dir)}`;
  refuse('--models-dir', 'folders with config.json, or GGUF files', got);
}

function readFolder(dir: string): string[] {
  try {
    return readdirSync(dir);
  } catch (cause) {
    refuse('--models-dir', 'a readable folder', errorMessage(cause));
  }
}

/** Returns the name of the model at `path`; null if there is none. */
function findModelName(entry: string, path: string): string | null {
  if (entry.startsWith('.')) return null;
  if (MODEL_FILES.some((mark) => existsSync(join(path, mark)))) return entry;
  if (isFurtherGguf(entry)) return null;
  const isFile = entry.endsWith(GGUF) && statSync(path, { throwIfNoEntry: false })?.isFile();
  return isFile ? entry.replace(FIRST_PART, '') : null;
}
