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

/** Creates the model of a tokenizer.json of type "Unigram". */
export function createUnigram(fields: Fields): Model {
  const { tokens, scores } = readPieces(fields);
  const ids = new Map(tokens.map((token, id) => [token, id]));
  const given = fields.get('unk_id');
  return new Unigram(ids, scores, {
    location: fields.location,
    unknownId: given === undefined ? null : requireId(`${fields.location}.unk_id`, given),
    bytes: fields.flag('byte_fallback', false) ? findByteIds(ids) : null,
  });
}

/** Settings of a Unigram model. */
interface UnigramSettings {
  /** Location of the model in errors. */
  location: string;
  /** Id of unknown characters; null without one. */
  unknownId: number | null;
  /** Ids of the 256 bytes that spell unknown characters; null without them. */
  bytes: ReturnType<typeof findByteIds> | null;
}

/** Tokens that end at each position of a piece: the best one's start and id. */
interface BestTokens {
  starts: Int32Array;
  found: Int32Array;
}

class Unigram implements Model {
  private readonly trie: Trie;
  private readonly unknownScore: number;

  constructor(
    readonly ids: ReadonlyMap<string, number>,
    private readonly scores: readonly number[],
    private readonly settings: UnigramSettings,
  ) {
    this.trie = new Trie(ids);
    const lowest = scores.reduce((min, score) => Math.min(min, score), Infinity);
    this.unknownScore = lowest - UNKNOWN_PENALTY;
  }

  encode(piece: string, all: number[]): void {
    const { bytes } = this.settings;
    for (const part of this.split(piece)) {
      const id = this.ids.get(part);
      const spelled = id === undefined && bytes ? byteTokens(bytes, part) : null;
      all.push(...(spelled ?? [id ?? this.unknown()]));
    }
  }

  /** Returns the best tokens as texts, in order. Adjacent unknown characters form one text. */
  private split(piece: string): string[] {
    const { unknownId } = this.settings;
    const { starts, found } = this.findBest(piece);
    const parts: string[] = [];
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
    return parts.reverse();
  }

  private findBest(piece: string): BestTokens {
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
      this.trie.prefixes(piece, at, (end, id) => {
        const score = required(this.scores[id]);
        if (isBetter(at, end, score)) reach(at, end, id, score);
        if (end === at + width) hasSingle = true;
      });
      if (!hasSingle && isBetter(at, at + width, this.unknownScore)) {
        reach(at, at + width, this.unknown(), this.unknownScore);
      }
      at += width;
    }
    return { starts, found };
  }

  /** Returns the id of unknown characters. Throws DS_DATA without one. */
  private unknown(): number {
    const { unknownId, location } = this.settings;
    if (unknownId !== null) return unknownId;
    const hint = 'Add "unk_id": a text has characters that the vocabulary lacks.';
    throw dataError(location, 'an "unk_id"', 'none', hint);
  }
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
