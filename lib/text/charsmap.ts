// The character table of SentencePiece, stored in a Precompiled normalizer.

import { Buffer } from 'node:buffer';
import { required } from '../runtime/required.js';

/**
 * A trie over bytes in an array of 32-bit words, in the layout of Darts. The low byte of a word is
 * its label. Bit 8 marks the end of a key. The high bits lead to its children. At the end of a key,
 * the child of byte 0 holds the offset of a zero-terminated text.
 */
interface Charsmap {
  readonly words: Uint32Array;
  readonly texts: Buffer;
}

const LABEL = 0x8000_00ff;
const IS_KEY = 1 << 8;
const IS_FAR = 1 << 9;
const OFFSET_MASK = 0x7fff_ffff;
/** Longer clusters, in bytes, are looked up by code points only. Source: the Rust crate. */
const LONGEST = 5;
/**
 * Matches single characters without combining ones, and runs that may hold clusters. Runs are short
 * because Intl.Segmenter takes quadratic time on long texts.
 */
const RUNS = /[\n\t -~](?![^\n\t -~])|[\n\t -~]?[^\n\t -~]+\n?/g;
/** Number of cached clusters. */
const KEPT = 1 << 14;

/**
 * Returns a function that normalizes a text by the table, as the Rust crate does. It looks up
 * grapheme clusters first, then their code points. `encoded` is the table in base64. Throws an
 * Error if it is damaged.
 */
export function charsmapOf(encoded: unknown): (text: string) => string {
  const map = parsed(encoded);
  const clusters = new Intl.Segmenter('und', { granularity: 'grapheme' });
  const known = new Map<string, string>();
  const become = (cluster: string): string => {
    const kept = known.get(cluster);
    if (kept !== undefined) return kept;
    if (known.size >= KEPT) known.clear();
    const whole = Buffer.byteLength(cluster) <= LONGEST ? textOf(map, cluster) : null;
    const found = whole ?? Array.from(cluster, (one) => textOf(map, one) ?? one).join('');
    known.set(cluster, found);
    return found;
  };
  const all = (run: string): string =>
    run.length === 1
      ? become(run)
      : Array.from(clusters.segment(run), ({ segment }) => become(segment)).join('');
  return (text) => text.replace(RUNS, all);
}

function parsed(encoded: unknown): Charsmap {
  if (typeof encoded !== 'string') throw wrong('not a base64 text');
  const bytes = Buffer.from(encoded, 'base64');
  const size = bytes.length < 4 ? -1 : bytes.readUInt32LE(0);
  if (size < 4 || size % 4 !== 0 || 4 + size > bytes.length) {
    throw wrong(`${bytes.length} bytes that begin with the size ${size}`);
  }
  const words = Uint32Array.from({ length: size / 4 }, (_, i) => bytes.readUInt32LE(4 + 4 * i));
  return { words, texts: bytes.subarray(4 + size) };
}

const wrong = (got: string): Error =>
  new Error(`a Precompiled normalizer with a damaged precompiled_charsmap: ${got}`);

/** Returns the text of the shortest prefix of `key` in the table; null without one. */
function textOf({ words, texts }: Charsmap, key: string): string | null {
  let at = childrenOf(0, required(words[0]));
  for (const byte of Buffer.from(key)) {
    if (byte === 0) return null;
    at ^= byte;
    const word = words[at];
    if (word === undefined || (word & LABEL) >>> 0 !== byte) return null;
    at = childrenOf(at, word);
    if ((word & IS_KEY) === 0) continue;
    const start = (words[at] ?? 0) & OFFSET_MASK;
    const end = texts.indexOf(0, start);
    return texts.toString('utf8', start, end < 0 ? texts.length : end);
  }
  return null;
}

/** The base of the children of the word at `at`. The child of a byte is at base ^ byte. */
const childrenOf = (at: number, word: number): number =>
  at ^ ((word >>> 10) << (word & IS_FAR ? 8 : 0));
