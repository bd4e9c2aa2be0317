// Normalizers convert a text before it is split and encoded. Source: the Rust crate tokenizers.

import { Buffer } from 'node:buffer';
import { dataError } from '../../runtime/input-errors.js';
import { required } from '../../runtime/required.js';
import { errorMessage } from '../../runtime/system-error.js';
import { lowercase, spaceEnd, spaceStart, spellBytes } from './characters.js';
import { Fields } from './fields.js';
import { countLeading, type Replacement, readReplacement } from './pattern.js';

export type Normalizer = Replacement;

const SPACES = /\p{White_Space}/gu;
/** Control characters of the BERT normalizer; tabs and line breaks become spaces. */
const CONTROLS = /\uFFFD|(?![\t\n\r])[\p{Cc}\p{Cf}\p{Co}\p{Cs}]/gu;
const CHINESE =
  /[\u4E00-\u9FFF\u3400-\u4DBF\u{20000}-\u{2A6DF}\u{2A700}-\u{2B73F}\u{2B740}-\u{2B81F}\u{2B920}-\u{2CEAF}\uF900-\uFAFF\u{2F800}-\u{2FA1F}]/gu;
/** Control characters that Nmt removes. */
const NMT_DROPPED = /(?![\0\t\n\f\r\u0080-\u008E\u0090-\u009E])\p{Cc}/gu;
const NMT_SPACES = /[\t\n\f\r\u1680\u200B-\u200F\u2028\u2029\u2581\uFEFF\uFFFD]/g;

const createForm = (name: 'NFC' | 'NFD' | 'NFKC' | 'NFKD') => (): Normalizer => (text) =>
  text.normalize(name);

const BUILDERS: ReadonlyMap<string, (fields: Fields) => Normalizer> = new Map([
  ['BertNormalizer', createBert],
  ['Lowercase', () => lowercase],
  ['NFC', createForm('NFC')],
  ['NFD', createForm('NFD')],
  ['NFKC', createForm('NFKC')],
  ['NFKD', createForm('NFKD')],
  ['Nmt', () => (text: string) => text.replace(NMT_DROPPED, '').replace(NMT_SPACES, ' ')],
  ['Strip', createStrip],
  ['StripAccents', () => (text: string) => text.replace(/\p{M}/gu, '')],
  ['Replace', readReplacement],
  ['Prepend', createPrepend],
  ['Precompiled', createPrecompiled],
  ['ByteLevel', () => spellBytes],
  ['Sequence', createSequence],
]);

/**
 * Creates the normalizer of a tokenizer.json; null without one. Throws DS_DATA for an unknown type
 * or an invalid field.
 */
export function createNormalizer(location: string, content: unknown): Normalizer | null {
  return content === null || content === undefined
    ? null
    : new Fields(location, content).build(BUILDERS);
}

function createSequence(fields: Fields): Normalizer {
  const steps = fields.each('normalizers').map((step) => step.build(BUILDERS));
  const normalize = (text: string): string => steps.reduce((form, step) => step(form), text);
  const leading = (given: string, count: number): number => {
    let [text, lead] = [given, count];
    for (const step of steps) {
      lead = countLeading(step, text, lead);
      text = step(text);
    }
    return lead;
  };
  return Object.assign(normalize, { leading });
}

function createBert(fields: Fields): Normalizer {
  const cleans = fields.flag('clean_text', true);
  const isolates = fields.flag('handle_chinese_chars', true);
  const lowers = fields.flag('lowercase', true);
  const strips = fields.flag('strip_accents', lowers);
  return (given) => {
    let text = given;
    if (cleans) text = text.replace(CONTROLS, '').replace(SPACES, ' ');
    if (isolates) text = text.replace(CHINESE, ' $& ');
    if (strips) text = text.normalize('NFD').replace(/\p{Mn}/gu, '');
    return lowers ? lowercase(text) : text;
  };
}

function createStrip(fields: Fields): Normalizer {
  const [left, right] = [fields.flag('strip_left', true), fields.flag('strip_right', true)];
  const cut = (text: string): string => {
    const start = left ? spaceEnd(text) : 0;
    return text.slice(start, right ? spaceStart(text, start) : text.length);
  };
  const leading = (text: string, count: number): number =>
    Math.min(Math.max(0, count - (left ? spaceEnd(text) : 0)), cut(text).length);
  return Object.assign(cut, { leading });
}

function createPrepend(fields: Fields): Normalizer {
  const prefix = fields.text('prepend');
  const prependText = (text: string): string => (text === '' ? '' : prefix + text);
  // The prefix counts as part of the character after it.
  const leading = (_: string, count: number): number => (count > 0 ? prefix.length + count : 0);
  return Object.assign(prependText, { leading });
}

function createPrecompiled(fields: Fields): Normalizer {
  try {
    return createCharsmap(fields.get('precompiled_charsmap'));
  } catch (cause) {
    throw dataError(fields.location, 'a table of SentencePiece', errorMessage(cause));
  }
}

// SentencePiece's character table, stored in a Precompiled normalizer.

/**
 * A trie over bytes in an array of 32-bit words, in Darts' layout. The low byte of a word is its
 * label. Bit 8 marks the end of a key. The high bits lead to the children. At the end of a key, the
 * child of byte 0 has the offset of a zero-terminated text.
 */
interface Charsmap {
  readonly words: Uint32Array;
  readonly texts: Buffer;
}

const LABEL = 0x8000_00ff;
const IS_KEY = 1 << 8;
const IS_FAR = 1 << 9;
const OFFSET_MASK = 0x7fff_ffff;
/**
 * Maximum bytes of a cluster; longer clusters are looked up by code point. Source: the Rust crate.
 */
const MAX_CLUSTER = 5;
/**
 * Matches single characters without combining characters, and runs that may contain clusters. Runs
 * are short because Intl.Segmenter takes quadratic time on long texts.
 */
const RUNS = /[\n\t -~](?![^\n\t -~])|[\n\t -~]?[^\n\t -~]+\n?/g;
/** Number of cached clusters. */
const MAX_CACHED = 1 << 14;

/**
 * Returns a function that normalizes a text with the table, as the Rust crate does. It looks up
 * grapheme clusters first, then their code points. `encoded` is the table in base64. Throws an
 * Error if it is damaged.
 */
function createCharsmap(encoded: unknown): (text: string) => string {
  const map = parseEncoded(encoded);
  const clusters = new Intl.Segmenter('und', { granularity: 'grapheme' });
  const cache = new Map<string, string>();
  const normalizeCluster = (cluster: string): string => {
    const cached = cache.get(cluster);
    if (cached !== undefined) return cached;
    if (cache.size >= MAX_CACHED) cache.clear();
    const clusterText =
      Buffer.byteLength(cluster) <= MAX_CLUSTER ? findPrefixText(map, cluster) : null;
    const normalized =
      clusterText ?? Array.from(cluster, (text) => findPrefixText(map, text) ?? text).join('');
    cache.set(cluster, normalized);
    return normalized;
  };
  const all = (run: string): string =>
    run.length === 1
      ? normalizeCluster(run)
      : Array.from(clusters.segment(run), ({ segment }) => normalizeCluster(segment)).join('');
  return (text) => text.replace(RUNS, all);
}

function parseEncoded(encoded: unknown): Charsmap {
  if (typeof encoded !== 'string') throw charsmapError('not a base64 text');
  const bytes = Buffer.from(encoded, 'base64');
  const size = bytes.length < 4 ? -1 : bytes.readUInt32LE(0);
  if (size < 4 || size % 4 !== 0 || 4 + size > bytes.length) {
    throw charsmapError(`${bytes.length} bytes that begin with the size ${size}`);
  }
  const words = Uint32Array.from({ length: size / 4 }, (_, i) => bytes.readUInt32LE(4 + 4 * i));
  return { words, texts: bytes.subarray(4 + size) };
}

const charsmapError = (got: string): Error =>
  new Error(`a Precompiled normalizer with a damaged precompiled_charsmap: ${got}`);

/** Returns the text of the shortest prefix of `key` in the table; null without one. */
function findPrefixText({ words, texts }: Charsmap, key: string): string | null {
  let at = childBase(0, required(words[0]));
  for (const byte of Buffer.from(key)) {
    if (byte === 0) return null;
    at ^= byte;
    const word = words[at];
    if (word === undefined || (word & LABEL) >>> 0 !== byte) return null;
    at = childBase(at, word);
    if ((word & IS_KEY) === 0) continue;
    const start = (words[at] ?? 0) & OFFSET_MASK;
    const end = texts.indexOf(0, start);
    return texts.toString('utf8', start, end < 0 ? texts.length : end);
  }
  return null;
}

/** Returns the base of the children of the word at `at`. The child of a byte is at base ^ byte. */
const childBase = (at: number, word: number): number =>
  at ^ ((word >>> 10) << (word & IS_FAR ? 8 : 0));
