// Builds grammar nodes for sets of characters: plain UTF-8, and characters inside JSON strings.
import { required } from '../../runtime/required.js';
import type { GrammarBuilder, Node } from './description.js';

/** First and last code point, both included. */
export type Range = readonly [first: number, last: number];
/** Ascending ranges that do not overlap. */
export type CodePoints = readonly Range[];

const MAX_CODE_POINT = 0x10ffff;
const SURROGATES: Range = [0xd800, 0xdfff];
/** All characters except surrogates, which UTF-8 cannot hold. */
export const ALL_CHARACTERS: CodePoints = [
  [0, SURROGATES[0] - 1],
  [SURROGATES[1] + 1, MAX_CODE_POINT],
];

/** Returns the union of the lists: sorted, with adjacent ranges merged. */
export function union(...lists: readonly CodePoints[]): CodePoints {
  const sorted = lists.flat().sort((a, b) => a[0] - b[0]);
  const out: [number, number][] = [];
  for (const [first, last] of sorted) {
    const before = out.at(-1);
    if (before && first <= before[1] + 1) before[1] = Math.max(before[1], last);
    else out.push([first, last]);
  }
  return out;
}

/** Returns all characters that are not in `points`. */
export function complement(points: CodePoints): CodePoints {
  const out: Range[] = [];
  let next = 0;
  for (const [first, last] of union(points)) {
    if (first > next) out.push([next, first - 1]);
    next = last + 1;
  }
  if (next <= MAX_CODE_POINT) out.push([next, MAX_CODE_POINT]);
  return out;
}

export const intersection = (a: CodePoints, b: CodePoints): CodePoints =>
  complement(union(complement(a), complement(b)));

/** Largest code point with 1, 2, 3 and 4 bytes of UTF-8. */
const LENGTHS = [0x7f, 0x7ff, 0xffff, MAX_CODE_POINT];

/** Returns a node that matches one character of the set in UTF-8. */
export function utf8Node(to: GrammarBuilder, points: CodePoints): Node {
  const parts: Node[] = [];
  const ascii: Range[] = [];
  for (const [first, last] of intersection(points, ALL_CHARACTERS)) {
    let begin = first;
    for (const max of LENGTHS) {
      if (begin > last) break;
      if (begin > max) continue;
      const end = Math.min(last, max);
      if (max === 0x7f) ascii.push([begin, end]);
      else parts.push(...sequencesBetween(to, utf8Bytes(begin), utf8Bytes(end)));
      begin = end + 1;
    }
  }
  if (ascii.length > 0) parts.push(to.bytes(...ascii));
  return to.any(...parts);
}

const utf8Bytes = (code: number): number[] => [...Buffer.from(String.fromCodePoint(code))];

/** Returns nodes that match the byte sequences from `low` to `high`, which have equal lengths. */
function sequencesBetween(
  to: GrammarBuilder,
  low: readonly number[],
  high: readonly number[],
): Node[] {
  const [first, last] = [required(low[0]), required(high[0])];
  if (low.length === 1) return [to.bytes([first, last])];
  const tailLength = low.length - 1;
  const tail = (from: readonly number[], until: readonly number[]): Node =>
    to.any(...sequencesBetween(to, from, until));
  const min = new Array<number>(tailLength).fill(0x80);
  const max = new Array<number>(tailLength).fill(0xbf);
  if (first === last) return [to.seq(to.bytes([first, first]), tail(low.slice(1), high.slice(1)))];
  const isWholeLow = low.slice(1).every((byte) => byte === 0x80);
  const isWholeHigh = high.slice(1).every((byte) => byte === 0xbf);
  const begin = isWholeLow ? first : first + 1;
  const end = isWholeHigh ? last : last - 1;
  const parts: Node[] = [];
  if (!isWholeLow) parts.push(to.seq(to.bytes([first, first]), tail(low.slice(1), max)));
  if (begin <= end) parts.push(to.seq(to.bytes([begin, end]), tail(min, max)));
  if (!isWholeHigh) parts.push(to.seq(to.bytes([last, last]), tail(min, high.slice(1))));
  return parts;
}

/** Characters with a short escape in JSON: control characters, quote and backslash. */
const SHORT_ESCAPES: readonly (readonly [code: number, escape: string])[] = [
  ...([
    [0x22, '\\"'],
    [0x5c, '\\\\'],
    [0x08, '\\b'],
    [0x0c, '\\f'],
  ] as const),
  ...([
    [0x0a, '\\n'],
    [0x0d, '\\r'],
    [0x09, '\\t'],
  ] as const),
];
const ESCAPED: CodePoints = union(
  [[0, 0x1f]],
  SHORT_ESCAPES.map(([code]) => [code, code]),
);

/**
 * Returns a node that matches one character of the set in a JSON string, spelled as
 * JSON.stringify() spells it. Each character has one spelling, so intersections and complements of
 * texts are exact.
 */
export function jsonCharacterNode(to: GrammarBuilder, points: CodePoints): Node {
  const plain = utf8Node(to, intersection(points, complement(ESCAPED)));
  const has = (code: number): boolean =>
    points.some(([first, last]) => first <= code && code <= last);
  const short = SHORT_ESCAPES.filter(([code]) => has(code)).map(([, spelling]) => spelling);
  const shortCodes = new Set(SHORT_ESCAPES.map(([code]) => code));
  const controls = Array.from({ length: 0x20 }, (_, code) => code).filter(
    (code) => has(code) && !shortCodes.has(code),
  );
  const long = controls.map((code) => `\\u${code.toString(16).padStart(4, '0')}`);
  return to.any(plain, to.texts([...short, ...long]));
}

/**
 * Returns a node that matches one character of a JSON string in any spelling. Escaped surrogates
 * must be paired.
 */
export function anyJsonCharacterNode(to: GrammarBuilder): Node {
  const hex = to.bytes([0x30, 0x39], [0x41, 0x46], [0x61, 0x66]);
  const d = to.bytes([0x44, 0x44], [0x64, 0x64]);
  const notD = to.bytes([0x30, 0x39], [0x41, 0x43], [0x45, 0x46], [0x61, 0x63], [0x65, 0x66]);
  const high = to.bytes([0x38, 0x39], [0x41, 0x42], [0x61, 0x62]);
  const low = to.bytes([0x43, 0x46], [0x63, 0x66]);
  const u = to.text('\\u');
  const single = to.seq(
    u,
    to.any(to.seq(notD, hex, hex, hex), to.seq(d, to.bytes([0x30, 0x37]), hex, hex)),
  );
  const pair = to.seq(u, d, high, hex, hex, u, d, low, hex, hex);
  const plain = utf8Node(to, complement(ESCAPED));
  const short = to.seq(to.text('\\'), to.any(...[...'"\\/bfnrt'].map((text) => to.text(text))));
  return to.any(plain, short, single, pair);
}
