// Names of a tokenizer's files, which are copied with a model.
import { existsSync } from 'node:fs';
import { join } from 'node:path';

/** File of the chat template; it takes precedence over tokenizer_config.json. */
export const CHAT_TEMPLATE_FILE = 'chat_template.jinja';

/** Names of the files; each may be missing. */
export const TOKENIZER_FILES: readonly string[] = [
  'tokenizer.json',
  'tokenizer_config.json',
  'special_tokens_map.json',
  'added_tokens.json',
  CHAT_TEMPLATE_FILE,
  'chat_template.json',
  'vocab.json',
  'merges.txt',
  'tokenizer.model',
  'vocab.txt',
];

/** Returns the paths of the tokenizer's files in `folder`. */
export const tokenizerFilesIn = (folder: string): string[] =>
  TOKENIZER_FILES.map((name) => join(folder, name)).filter((path) => existsSync(path));
