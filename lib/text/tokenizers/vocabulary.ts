// The vocabulary of a model as an object from tokens to ids.
import { type Fields, isId, requireId } from './fields.js';

/** Throws DS_DATA. */
export function vocabularyOf(fields: Fields): Map<string, number> {
  const vocab = fields.object('vocab');
  // Locations are made only for errors: vocabularies are large.
  return vocab.map((value, token) =>
    isId(value) ? value : requireId(`${vocab.location}[${JSON.stringify(token)}]`, value),
  );
}

/** The tokens <0x00> to <0xFF>, as BPE and Unigram spell bytes; undefined for missing ones. */
export const byteIds = (ids: ReadonlyMap<string, number>): (number | undefined)[] =>
  Array.from({ length: 256 }, (_, byte) =>
    ids.get(`<0x${byte.toString(16).toUpperCase().padStart(2, '0')}>`),
  );

/** The ids of a text's bytes; null if a byte has no token. */
export function spelledBy(bytes: readonly (number | undefined)[], text: string): number[] | null {
  const ids = Array.from(Buffer.from(text), (byte) => bytes[byte]);
  return ids.includes(undefined) ? null : (ids as number[]);
}
