// Unigram: selects the tokens of a piece with the largest sum of scores. Source: the Rust crate
// tokenizers.

import { dataError } from '../../runtime/input-errors.js';
import { required } from '../../runtime/required.js';
import { type Fields, requireId } from './fields.js';
import type { Model } from './model.js';
import { Trie } from './trie.js';
import { byteTokens, findByteIds } from './vocabulary.js';

/** Penalty of an unknown character relative to the lowest score. */
const UNKNOWN_PENALTY = 10;
const UNREACHED = -1;

export function createUnigram(fields: Fields): Model {
  const { tokens, scores } = readPieces(fields);
  const ids = new Map(tokens.map((token, id) => [token, id]));
  const bytes = fields.flag('byte_fallback', false) ? findByteIds(ids) : null;
  const unknownId =
    fields.get('unk_id') === undefined
      ? null
      : requireId(`${fields.location}.unk_id`, fields.get('unk_id'));
  const unknownScore =
    scores.reduce((min, score) => Math.min(min, score), Infinity) - UNKNOWN_PENALTY;
  const trie = new Trie(ids);
  const unknown = (): number => {
    if (unknownId !== null) return unknownId;
    throw dataError(
      fields.location,
      'an "unk_id"',
      'none',
      'Add "unk_id": a text has characters that the vocabulary lacks.',
    );
  };

  /** Returns the bounds of the best tokens, linked from the last one. */
  const findBest = (piece: string): { starts: Int32Array; found: Int32Array } => {
    const size = piece.length;
    const total = new Float64Array(size + 1);
    const starts = new Int32Array(size + 1).fill(UNREACHED);
    const found = new Int32Array(size + 1);
    const isBetter = (start: number, end: number, score: number): boolean =>
      starts[end] === UNREACHED || score + required(total[start]) > required(total[end]);
    const reach = (start: number, end: number, id: number, score: number): void => {
      total[end] = score + required(total[start]);
      starts[end] = start;
      found[end] = id;
    };
    for (let at = 0; at < size; ) {
      const width = required(piece.codePointAt(at)) > 0xffff ? 2 : 1;
      let hasSingle = false;
      trie.prefixes(piece, at, (end, id) => {
        const score = required(scores[id]);
        if (isBetter(at, end, score)) reach(at, end, id, score);
        if (end === at + width) hasSingle = true;
      });
      if (!hasSingle && isBetter(at, at + width, unknownScore)) {
        reach(at, at + width, unknown(), unknownScore);
      }
      at += width;
    }
    return { starts, found };
  };

  return {
    ids,
    encode: (piece, all) => {
      const { starts, found } = findBest(piece);
      const parts: string[] = [];
      // Adjacent unknown characters form one part.
      let unknownEnd = 0;
      let end = piece.length;
      while (end > 0) {
        const start = required(starts[end]);
        const isUnknown = unknownId !== null && found[end] === unknownId;
        if (isUnknown && unknownEnd === 0) unknownEnd = end;
        if (!isUnknown) {
          if (unknownEnd > 0) parts.push(piece.slice(end, unknownEnd));
          unknownEnd = 0;
          parts.push(piece.slice(start, end));
        }
        end = start;
      }
      if (unknownEnd > 0) parts.push(piece.slice(0, unknownEnd));
      for (const part of parts.reverse()) {
        const id = ids.get(part);
        const spelled = id === undefined && bytes ? byteTokens(bytes, part) : null;
        all.push(...(spelled ?? [id ?? unknown()]));
      }
    },
  };
}

function readPieces(fields: Fields): { tokens: string[]; scores: number[] } {
  const list = fields.list('vocab');
  const tokens: string[] = [];
  const scores: number[] = [];
  for (const [id, pair] of list.entries()) {
    const [token, score] = Array.isArray(pair) ? pair : [];
    if (typeof token !== 'string' || typeof score !== 'number') {
      throw fields.wrongError(`vocab[${id}]`, 'a token and its score', pair);
    }
    tokens.push(token);
    scores.push(score);
  }
  return { tokens, scores };
}
