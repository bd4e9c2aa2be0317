// Encodes two texts as one row of tokens, truncated as in the crate tokenizers.
import { requireInteger } from '../runtime/require-number.js';
import { requireType } from '../runtime/require-type.js';
import type { CoreTokenizer } from './tokenizers/core.js';

/** Two texts as one row of tokens. */
export interface EncodedPair {
  /** Ids of both texts, with the special tokens around them. */
  ids: Int32Array;
  /** The index of each token's text, 0 or 1: `token_type_ids` of transformers. */
  types: Int32Array;
}

/**
 * Encodes two texts in at most `maxLength` tokens. Throws DS_ARGUMENT if `maxLength` is too small
 * for the special tokens, or a text is no string.
 */
export function encodePair(
  core: CoreTokenizer,
  [first, second]: readonly [string, string],
  maxLength: number | undefined,
): EncodedPair {
  const op = 'Tokenizer.encodePair';
  requireType(`${op} first`, first, 'string');
  requireType(`${op} second`, second, 'string');
  const texts = [core.encode(first), core.encode(second)] as const;
  const around = core.pair.filter((part) => 'id' in part).length;
  const lengths: readonly [number, number] = [texts[0].length, texts[1].length];
  const [a, b] =
    maxLength === undefined
      ? lengths
      : cutLengths(lengths, requireInteger(`${op} maxLength`, maxLength, around) - around);
  const cut = [texts[0].slice(0, a), texts[1].slice(0, b)] as const;
  const ids = core.pair.flatMap((part) => ('id' in part ? [part.id] : cut[part.text]));
  const types = core.pair.flatMap((part) =>
    'id' in part ? [part.type] : cut[part.text].map(() => part.type),
  );
  return { ids: Int32Array.from(ids), types: Int32Array.from(types) };
}

/**
 * Returns the lengths of two texts after the cut. Together they have at most `room` tokens. Source:
 * the crate tokenizers, "longest_first".
 */
function cutLengths([a, b]: readonly [number, number], room: number): [number, number] {
  if (a + b <= room) return [a, b];
  const [short, long] = [Math.min(a, b), Math.max(a, b)];
  const longLength = short > room ? short : Math.max(short, room - short);
  const [x, y] =
    short + longLength > room
      ? [Math.floor(room / 2), Math.floor(room / 2) + (room % 2)]
      : [short, Math.min(longLength, long)];
  return a > b ? [y, x] : [x, y];
}
