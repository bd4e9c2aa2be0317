// Defines a dataset that tokenizes each sample on access, so that reading a sample takes time.
import { readdirSync, readFileSync } from 'node:fs';
import { dirname, join } from 'node:path';

import type { Dataset, TokenWindow } from '../lib/data/index.js';

interface Tokenizer {
  encode(text: string): number[];
}

/** More than GPT-2's tokens have in source text, so that most windows are full. */
const CHARACTERS_PER_TOKEN = 5;

/** Windows of the TypeScript library's declarations, as GPT-2 tokens; too short ones are padded. */
export function textDataset(seq: number): Dataset<TokenWindow> {
  const { encode } = require('gpt-tokenizer/encoding/r50k_base') as Tokenizer;
  const folder = dirname(require.resolve('typescript'));
  const files = readdirSync(folder).filter((name) => /^lib\..*\.d\.ts$/.test(name));
  const text = files.map((name) => readFileSync(join(folder, name), 'utf8')).join('\n');
  const characters = CHARACTERS_PER_TOKEN * seq;
  return {
    length: Math.floor(text.length / characters),
    get(index) {
      const run = new Int32Array(seq + 1);
      run.set(encode(text.slice(index * characters, (index + 1) * characters)).slice(0, seq + 1));
      return { tokens: run.slice(0, seq), targets: run.slice(1) };
    },
  };
}
