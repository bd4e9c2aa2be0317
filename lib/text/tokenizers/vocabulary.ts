// Reads the vocabulary of a model, an object from tokens to ids.
import { type Fields, isId, requireId } from './fields.js';

/** Returns the ids by token. Throws DS_DATA if a value is no id. */
export function readVocabulary(fields: Fields): Map<string, number> {
  const vocab = fields.object('vocab');
  // Locations are built only for errors, because vocabularies are large.
  return vocab.map((value, token) =>
    isId(value) ? value : requireId(`${vocab.location}[${JSON.stringify(token)}]`, value),
  );
}

/** Returns the ids of the tokens <0x00> to <0xFF>; undefined for missing tokens. */
export const findByteIds = (ids: ReadonlyMap<string, number>): (number | undefined)[] =>
  Array.from({ length: 256 }, (_, byte) =>
    ids.get(`<0x${byte.toString(16).toUpperCase().padStart(2, '0')}>`),
  );

/** Returns the byte tokens of a text; null if a byte has no token. */
export function byteTokens(bytes: readonly (number | undefined)[], text: string): number[] | null {
  const ids = Array.from(Buffer.from(text), (byte) => bytes[byte]);
  return ids.includes(undefined) ? null : (ids as number[]);
}
