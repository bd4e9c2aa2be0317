// Writes the tokenizer of a GGUF file beside a model in safetensors.
import { join } from 'node:path';
import { replaceFile } from '../../checkpoint/index.js';
import { createTokenizerFiles, hasTokenizer } from '../../text/gguf-tokenizer.js';

/**
 * Writes the tokenizer of the GGUF file `path` into the folder `dir` and returns the paths. Writes
 * nothing if the file has no tokenizer. Rejects with DS_DATA, DS_IO.
 */
export async function writeGgufTokenizer(path: string, dir: string): Promise<string[]> {
  const files = hasTokenizer(path) ? createTokenizerFiles(path) : {};
  for (const [name, content] of Object.entries(files)) await replaceFile(join(dir, name), content);
  return Object.keys(files).map((name) => join(dir, name));
}
