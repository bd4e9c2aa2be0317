// Decoders convert spellings of tokens to text. Source: the Rust crate tokenizers.
import { TextDecoder } from 'node:util';

import { BYTE_LETTERS } from './characters.js';
import { Fields } from './fields.js';
import { readReplacement } from './pattern.js';

/** Converts tokens to parts of a text. */
export type Decoder = (tokens: readonly string[]) => readonly string[];

const BYTES: ReadonlyMap<string, number> = new Map(
  BYTE_LETTERS.map((letter, byte) => [letter, byte]),
);
const UTF8 = new TextDecoder('utf-8', { ignoreBOM: true });

const decodeEach =
  (change: (token: string, i: number, all: readonly string[]) => string): Decoder =>
  (tokens) =>
    tokens.map(change);

const COMMON: readonly [string, (fields: Fields) => Decoder][] = [
  ['BPEDecoder', createSuffix],
  ['ByteLevel', () => decodeByteLevel],
  ['CTC', createCtc],
  ['Fuse', () => (tokens: readonly string[]) => [tokens.join('')]],
  ['Metaspace', createMetaspace],
  ['Replace', createReplace],
  ['Strip', createStrip],
  ['WordPiece', createWordPiece],
];

function createBuilders(byteFallback: Decoder): ReadonlyMap<string, (fields: Fields) => Decoder> {
  const builders = new Map([...COMMON, ['ByteFallback', () => byteFallback]]);
  return builders.set('Sequence', (fields) => {
    const steps = fields.each('decoders').map((step) => step.build(builders));
    return (tokens) => steps.reduce((parts, step) => step(parts), tokens);
  });
}

const EXACT = createBuilders(createByteFallback(decodeRun));
const PARTIAL = createBuilders(createByteFallback((bytes) => [UTF8.decode(bytes)]));

/**
 * Creates the decoder of a tokenizer.json; null without one. With `isPartial`, tokens may be a part
 * of a text: valid bytes next to an incomplete character stay. Throws DS_DATA for an unknown type
 * or an invalid field.
 */
export function createDecoder(
  location: string,
  content: unknown,
  isPartial: boolean,
): Decoder | null {
  return content === null || content === undefined
    ? null
    : new Fields(location, content).build(isPartial ? PARTIAL : EXACT);
}

/**
 * Decodes GPT-2's letters to bytes. A token with other letters, such as an added token, stands for
 * its UTF-8 bytes.
 */
function decodeByteLevel(tokens: readonly string[]): string[] {
  const bytes: number[] = [];
  for (const token of tokens) {
    const letterBytes = Array.from(token, (letter) => BYTES.get(letter));
    if (letterBytes.includes(undefined)) bytes.push(...Buffer.from(token));
    else bytes.push(...(letterBytes as number[]));
  }
  return [UTF8.decode(Uint8Array.from(bytes))];
}

/** Decodes a run of bytes. If it is not UTF-8, each byte becomes U+FFFD. */
function decodeRun(bytes: Uint8Array): string[] {
  const text = UTF8.decode(bytes);
  return Buffer.from(text).equals(bytes) ? [text] : Array.from(bytes, () => '\uFFFD');
}

/** Creates a decoder of byte tokens such as <0x41>. */
function createByteFallback(textsOf: (bytes: Uint8Array) => string[]): Decoder {
  return (tokens) => {
    const parts: string[] = [];
    let bytes: number[] = [];
    const flush = (): void => {
      if (bytes.length > 0) parts.push(...textsOf(Uint8Array.from(bytes)));
      bytes = [];
    };
    for (const token of tokens) {
      const code = /^<0x([0-9A-Fa-f]{2})>$/.exec(token)?.[1];
      if (code !== undefined) {
        bytes.push(Number.parseInt(code, 16));
        continue;
      }
      flush();
      parts.push(token);
    }
    flush();
    return parts;
  };
}

function createMetaspace(fields: Fields): Decoder {
  const mark = fields.letter('replacement', '▁');
  const isNever =
    fields.get('add_prefix_space') === false ||
    fields.text('prepend_scheme', 'always').toLowerCase() === 'never';
  return decodeEach((token, i) => token.replaceAll(mark, i === 0 && !isNever ? '' : ' '));
}

function createSuffix(fields: Fields): Decoder {
  const suffix = fields.text('suffix', '</w>');
  return decodeEach((token, i, all) => token.replaceAll(suffix, i === all.length - 1 ? '' : ' '));
}

function createWordPiece(fields: Fields): Decoder {
  const prefix = fields.text('prefix', '##');
  const cleans = fields.flag('cleanup', true);
  return decodeEach((token, i) => {
    let text = token;
    if (i > 0) text = text.startsWith(prefix) ? text.slice(prefix.length) : ` ${text}`;
    return cleans ? cleanUp(text) : text;
  });
}

const CONTRACTIONS: readonly (readonly [string, string])[] = [
  ...([
    [' .', '.'],
    [' ?', '?'],
    [' !', '!'],
    [' ,', ','],
    [" ' ", "'"],
    [" n't", "n't"],
  ] as const),
  ...([
    [" 'm", "'m"],
    [' do not', " don't"],
    [" 's", "'s"],
    [" 've", "'ve"],
    [" 're", "'re"],
  ] as const),
];

const cleanUp = (text: string): string =>
  CONTRACTIONS.reduce((form, [from, to]) => form.replaceAll(from, to), text);

function createCtc(fields: Fields): Decoder {
  const pad = fields.text('pad_token', '<pad>');
  const delimiter = fields.text('word_delimiter_token', '|');
  const cleans = fields.flag('cleanup', true);
  return (tokens) =>
    tokens
      .filter((token, i) => token !== tokens[i - 1])
      .map((token) => token.replaceAll(pad, ''))
      .map((token) => (cleans ? cleanUp(token).replaceAll(delimiter, ' ') : token))
      .filter((token) => token !== '');
}

function createReplace(fields: Fields): Decoder {
  const change = readReplacement(fields);
  return decodeEach((token) => change(token));
}

function createStrip(fields: Fields): Decoder {
  const letter = fields.letter('content');
  const [start, stop] = [fields.count('start', 0), fields.count('stop', 0)];
  return decodeEach((token) => {
    const letters = Array.from(token);
    let [from, to] = [0, letters.length];
    while (from < start && letters[from] === letter) from++;
    while (letters.length - to < stop && to > 0 && letters[to - 1] === letter) to--;
    return letters.slice(from, to).join('');
  });
}
