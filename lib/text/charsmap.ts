// SentencePiece's table of characters and what they become, as a Precompiled normalizer has it.
import { Buffer } from 'node:buffer';

/**
 * A trie over bytes in one array of words of 32 bits, as Darts lays it out: a word's low byte is
 * the byte that leads to it, bit 8 says that a key ends there, the high bits where its children
 * are. Where a key ends, the child of byte 0 is the place of its text, which ends with a zero.
 */
interface Charsmap {
  readonly words: Uint32Array;
  readonly texts: Buffer;
}

const LABEL = 0x8000_00ff;
const IS_KEY = 1 << 8;
const IS_FAR = 1 << 9;
const PLACE = 0x7fff_ffff;
/** Bytes of a cluster that the table is asked for as a whole, at most. Source: the Rust crate. */
const LONGEST = 5;
/**
 * Single characters that nothing joins, and runs of what may be joined with the character in front:
 * clusters of long texts are found in quadratic time.
 */
const RUNS = /[\n\t -~](?![^\n\t -~])|[\n\t -~]?[^\n\t -~]+\n?/g;
/** Clusters whose text is kept. */
const KEPT = 1 << 14;

/**
 * What makes a text of another by the table, as the crate tokenizers does: clusters of characters
 * that belong together (é of two code points) are looked up as wholes, then each code point.
 * `encoded` is the table in base64. Throws an Error that says what is wrong with it.
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
  if (typeof encoded !== 'string') throw wrong('none in base64');
  const bytes = Buffer.from(encoded, 'base64');
  const size = bytes.length < 4 ? -1 : bytes.readUInt32LE(0);
  if (size < 4 || size % 4 !== 0 || 4 + size > bytes.length) {
    throw wrong(`${bytes.length} bytes that begin with the size ${size}`);
  }
  const words = Uint32Array.from({ length: size / 4 }, (_, i) => bytes.readUInt32LE(4 + 4 * i));
  return { words, texts: bytes.subarray(4 + size) };
}

const wrong = (got: string): Error =>
  new Error(`a Precompiled normalizer whose precompiled_charsmap is damaged: ${got}`);

/** What the shortest key that `key` begins with becomes; null where there is none. */
function textOf({ words, texts }: Charsmap, key: string): string | null {
  let at = childrenOf(0, words[0] as number);
  for (const byte of Buffer.from(key)) {
    if (byte === 0) return null;
    at ^= byte;
    const word = words[at];
    if (word === undefined || (word & LABEL) >>> 0 !== byte) return null;
    at = childrenOf(at, word);
    if ((word & IS_KEY) === 0) continue;
    const start = (words[at] ?? 0) & PLACE;
    const end = texts.indexOf(0, start);
    return texts.toString('utf8', start, end < 0 ? texts.length : end);
  }
  return null;
}

/** Where those of the word at `at` are; which one a byte leads to is an exclusive or. */
const childrenOf = (at: number, word: number): number =>
  at ^ ((word >>> 10) << (word & IS_FAR ? 8 : 0));
