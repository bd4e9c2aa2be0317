// Writes GPT-2's tokenizer as tokenizer.json into a model folder, so that `ds serve`, `ds chat` and
// transformers can read it.
'use strict';
const {
  existsSync,
  mkdirSync,
  readFileSync,
  renameSync,
  rmSync,
  writeFileSync,
} = require('node:fs');
const { join } = require('node:path');

const END = '<|endoftext|>';

/** Returns GPT-2's letter of each byte: printable bytes themselves, others from U+0100 on. */
function byteLetters() {
  const isPrintable = (byte) => (byte >= 33 && byte <= 126) || (byte >= 161 && byte !== 173);
  let others = 0;
  return Array.from({ length: 256 }, (_, byte) =>
    String.fromCodePoint(isPrintable(byte) ? byte : 256 + others++),
  );
}

/** Returns the two tokens that merge into `token`, found by applying all earlier merges. */
function mergeOf(token, rankOf) {
  const rank = rankOf.get(token);
  const parts = Array.from(token);
  while (parts.length > 2) {
    const pairs = parts.slice(1).map((part, i) => rankOf.get(parts[i] + part) ?? Infinity);
    const best = Math.min(...pairs);
    if (best >= rank) break;
    const at = pairs.indexOf(best);
    parts.splice(at, 2, parts[at] + parts[at + 1]);
  }
  return parts.join(' ');
}

/** Writes a new file atomically. Returns whether the file contains `text`, also if it existed. */
function writeNew(path, text) {
  if (existsSync(path)) return readFileSync(path, 'utf8') === text;
  const draft = `${path}.${process.pid}.part`;
  try {
    writeFileSync(draft, text, { flag: 'wx' });
    renameSync(draft, path);
  } finally {
    rmSync(draft, { force: true });
  }
  return true;
}

/** Writes tokenizer_config.json and tokenizer.json into a folder without tokenizer.json. */
function writeGpt2Tokenizer(folder, { maxLength }) {
  const path = join(folder, 'tokenizer.json');
  if (existsSync(path)) return;
  const ranks = require('gpt-tokenizer/bpeRanks/r50k_base').default;
  const letters = byteLetters();
  const spell = (token) => Array.from(Buffer.from(token), (byte) => letters[byte]).join('');
  const tokens = ranks.map(spell);
  const rankOf = new Map(tokens.map((token, id) => [token, id]));
  const merges = tokens.filter((token) => token.length > 1).map((token) => mergeOf(token, rankOf));
  const flags = { single_word: false, lstrip: false, rstrip: false, normalized: false };
  const byteLevel = { type: 'ByteLevel', add_prefix_space: false, trim_offsets: true };
  const tokenizer = {
    version: '1.0',
    truncation: null,
    padding: null,
    added_tokens: [{ id: tokens.length, content: END, ...flags, special: true }],
    normalizer: null,
    pre_tokenizer: { ...byteLevel, use_regex: true },
    post_processor: { ...byteLevel, use_regex: true },
    decoder: { ...byteLevel, use_regex: true },
    model: {
      type: 'BPE',
      dropout: null,
      unk_token: null,
      fuse_unk: false,
      byte_fallback: false,
      continuing_subword_prefix: '',
      end_of_word_suffix: '',
      ignore_merges: false,
      vocab: Object.fromEntries([...tokens, END].map((token, id) => [token, id])),
      merges,
    },
  };
  const config = {
    bos_token: END,
    eos_token: END,
    unk_token: END,
    model_max_length: maxLength,
    add_prefix_space: false,
    tokenizer_class: 'GPT2Tokenizer',
  };
  mkdirSync(folder, { recursive: true });
  const configText = `${JSON.stringify(config, null, 2)}\n`;
  const isOurs = writeNew(join(folder, 'tokenizer_config.json'), configText);
  if (isOurs) writeNew(path, JSON.stringify(tokenizer));
}

module.exports = { writeGpt2Tokenizer };
