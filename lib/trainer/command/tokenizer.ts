// Opens the tokenizer of `ds train`, with the chat template of --chat_template_path if it is given.

import { readFileSync, statSync } from 'node:fs';
import { findOrPullFolder } from '../../hub/local-folder.js';
import { argumentError } from '../../runtime/input-errors.js';
import { withoutBom } from '../../runtime/parse-json.js';
import { errorMessage } from '../../runtime/system-error.js';
import { isGgufPath } from '../../text/gguf-tokenizer.js';
import { Tokenizer } from '../../text/index.js';
import type { TrainArguments } from './arguments.js';
import { findTokenizerFolder } from './hub-model.js';

/**
 * Opens the tokenizer. Rejects with DS_ARGUMENT for invalid arguments, DS_DATA if a file is
 * damaged, DS_HUB if a download fails.
 */
export async function openTokenizer(args: TrainArguments): Promise<Tokenizer> {
  const folder = await findTokenizerFolder(args);
  const { chat_template_path: source } = args;
  if (source === undefined) return Tokenizer.fromPretrained(folder);
  return Tokenizer.fromPretrained(folder, { chatTemplate: await readTemplate(source) });
}

/**
 * Returns the text of a chat template. `source`: a file, a tokenizer, or the text itself, as
 * recipes have it.
 */
async function readTemplate(source: string): Promise<string> {
  const op = '--chat_template_path';
  if (source.includes('{')) return source;
  if (isTemplateFile(source)) {
    try {
      return withoutBom(readFileSync(source, 'utf8'));
    } catch (cause) {
      throw argumentError(op, 'a readable file', errorMessage(cause));
    }
  }
  const folder = await findOrPullFolder(op, source, { need: 'tokenizer' });
  const template = Tokenizer.fromPretrained(folder).templateText('default');
  if (template !== null) return template;
  const expected = 'a Jinja file, or a tokenizer with a chat template';
  throw argumentError(op, expected, `${source}, a tokenizer without one`);
}

const isTemplateFile = (path: string): boolean =>
  !isGgufPath(path) && (statSync(path, { throwIfNoEntry: false })?.isFile() ?? false);
