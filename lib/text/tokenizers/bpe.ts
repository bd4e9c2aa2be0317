// Byte-pair encoding. Source: the Rust crate tokenizers.

import { formatValue } from '../../runtime/format-value.js';
import { dataError } from '../../runtime/input-errors.js';
import { required } from '../../runtime/required.js';
import { type Fields, MAX_IDS } from './fields.js';
import type { Model } from './model.js';
import { byteTokens, findByteIds, readVocabulary } from './vocabulary.js';

/** Merges of pairs of ids. A lower rank comes first. */
interface Merges {
  /** Rank of each merge, by first * MAX_IDS + second. */
  readonly ranks: ReadonlyMap<number, number>;
  /** Merged id of each rank. */
  readonly merged: Int32Array;
}

/** Number of cached pieces, and the maximum length of one. */
const MAX_CACHED = 1 << 14;
const MAX_CACHED_LENGTH = 256;

export function createBpe(fields: Fields): Model {
  const ids = readVocabulary(fields);
  const ignoresMerges = fields.flag('ignore_merges', false);
  const first = toSymbols(fields, ids);
  const merges = readMerges(fields, ids);
  const cache = new Map<string, readonly number[]>();
  const encodePiece = (piece: string): readonly number[] => {
    const wholeId = ignoresMerges ? ids.get(piece) : undefined;
    return wholeId === undefined ? mergeAll(first(piece), merges) : [wholeId];
  };
  return {
    ids,
    encode: (piece, all) => {
      let ids = cache.get(piece);
      if (ids === undefined) {
        ids = encodePiece(piece);
        if (cache.size >= MAX_CACHED) cache.clear();
        if (piece.length < MAX_CACHED_LENGTH) cache.set(piece, ids);
      }
      for (const id of ids) all.push(id);
    },
  };
}

/** Converts a piece to the ids of its characters. */
function toSymbols(fields: Fields, ids: ReadonlyMap<string, number>): (piece: string) => number[] {
  const prefix = fields.text('continuing_subword_prefix', '');
  const suffix = fields.text('end_of_word_suffix', '');
  const fuses = fields.flag('fuse_unk', false);
  const bytes = fields.flag('byte_fallback', false) ? findByteIds(ids) : null;
  const token = fields.get('unk_token') === undefined ? null : fields.text('unk_token');
  const unknown = (): number => {
    const id = ids.get(required(token));
    if (id !== undefined) return id;
    const expected = `the unknown token ${JSON.stringify(token)} in the vocabulary`;
    throw dataError(
      fields.location,
      expected,
      'none',
      'Add the token: a text has characters that the vocabulary lacks.',
    );
  };
  return (piece) => {
    const symbols: number[] = [];
    // Like the crate, adds an unknown token late: following bytes precede it.
    let pending: number | null = null;
    for (let at = 0; at < piece.length; ) {
      const letter = String.fromCodePoint(required(piece.codePointAt(at)));
      const lead = at > 0 ? prefix + letter : letter;
      at += letter.length;
      const symbol = at < piece.length ? lead : lead + suffix;
      const id = ids.get(symbol);
      if (id !== undefined) {
        if (pending !== null) symbols.push(pending);
        pending = null;
        symbols.push(id);
        continue;
      }
      const byteSymbols = bytes && byteTokens(bytes, symbol);
      if (byteSymbols) symbols.push(...byteSymbols);
      else if (token !== null) {
        if (pending !== null && !fuses) symbols.push(pending);
        pending = unknown();
      }
    }
    if (pending !== null) symbols.push(pending);
    return symbols;
  };
}

function readMerges(fields: Fields, ids: ReadonlyMap<string, number>): Merges {
  const prefix = fields.text('continuing_subword_prefix', '');
  const list = fields.list('merges');
  const ranks = new Map<number, number>();
  const merged = new Int32Array(list.length);
  for (const [rank, merge] of list.entries()) {
    const pair: unknown[] = typeof merge === 'string' ? merge.split(' ') : [merge].flat();
    const [left, right] = pair;
    if (pair.length !== 2 || typeof left !== 'string' || typeof right !== 'string') {
      throw fields.wrongError(`merges[${rank}]`, 'two tokens', merge);
    }
    const tokens = [left, right, left + right.slice(prefix.length)];
    const [first, second, mergedId] = tokens.map((token) => ids.get(token));
    if (first === undefined || second === undefined || mergedId === undefined) {
      const missing = tokens.find((token) => !ids.has(token));
      const expected = 'a merge of tokens of the vocabulary';
      const got = `${formatValue(missing)}, which the vocabulary lacks`;
      throw dataError(
        `${fields.location}.merges[${rank}]`,
        expected,
        got,
        'Copy or download it again: it may be truncated.',
      );
    }
    ranks.set(first * MAX_IDS + second, rank);
    merged[rank] = mergedId;
  }
  return { ranks, merged };
}

/**
 * Positions have 32 bits, so an entry is rank * 2^32 + position; the smallest entry is the next
 * merge.
 */
const POSITIONS = 2 ** 32;
const END = -1;

/** Merges symbols until no pair has a merge. */
function mergeAll(symbols: number[], { ranks, merged }: Merges): readonly number[] {
  const count = symbols.length;
  if (count < 2) return symbols;
  const queue = new MinHeap();
  const next = new Int32Array(count);
  const previous = new Int32Array(count);
  const isGone = new Uint8Array(count);
  const rankAt = (at: number): number | undefined => {
    const after = required(next[at]);
    if (after === END) return undefined;
    return ranks.get(required(symbols[at]) * MAX_IDS + required(symbols[after]));
  };
  const enqueue = (at: number): void => {
    const rank = rankAt(at);
    if (rank !== undefined) queue.push(rank * POSITIONS + at);
  };
  for (let i = 0; i < count; ++i) {
    next[i] = i + 1 < count ? i + 1 : END;
    previous[i] = i - 1;
  }
  for (let i = 0; i + 1 < count; ++i) enqueue(i);
  for (let entry = queue.pop(); entry !== undefined; entry = queue.pop()) {
    const rank = Math.floor(entry / POSITIONS);
    const at = entry - rank * POSITIONS;
    if (isGone[at]) continue;
    const now = rankAt(at);
    // The pair has changed. Like the crate, merge it only if the new pair merges into the same
    // token.
    if (now === undefined || merged[now] !== merged[rank]) continue;
    const right = required(next[at]);
    symbols[at] = required(merged[rank]);
    isGone[right] = 1;
    const after = required(next[right]);
    next[at] = after;
    if (after !== END) previous[after] = at;
    if (required(previous[at]) !== END) enqueue(required(previous[at]));
    enqueue(at);
  }
  return symbols.filter((_, i) => !isGone[i]);
}

/** A binary heap of numbers. */
class MinHeap {
  private readonly heap: number[] = [];

  push(entry: number): void {
    const { heap } = this;
    let at = heap.push(entry) - 1;
    while (at > 0) {
      const parent = (at - 1) >> 1;
      if (required(heap[parent]) <= entry) break;
      heap[at] = required(heap[parent]);
      at = parent;
    }
    heap[at] = entry;
  }

  pop(): number | undefined {
    const { heap } = this;
    const min = heap[0];
    const last = heap.pop();
    if (last === undefined || heap.length === 0) return min;
    let at = 0;
    for (;;) {
      let child = 2 * at + 1;
      if (child >= heap.length) break;
      if (child + 1 < heap.length && required(heap[child + 1]) < required(heap[child])) child++;
      if (required(heap[child]) >= last) break;
      heap[at] = required(heap[child]);
      at = child;
    }
    heap[at] = last;
    return min;
  }
}
