// Models of a tokenizer.json, which convert pieces of text to ids.
import { dataError } from '../../runtime/input-errors.js';
import { createBpe } from './bpe.js';
import { Fields } from './fields.js';
import type { Model } from './model.js';
import { Trie } from './trie.js';
import { createUnigram } from './unigram.js';
import { readVocabulary } from './vocabulary.js';

const BUILDERS: ReadonlyMap<string, (fields: Fields) => Model> = new Map([
  ['BPE', createBpe],
  ['WordPiece', createWordPiece],
  ['Unigram', createUnigram],
  ['WordLevel', createWordLevel],
]);

/**
 * Creates the model of a tokenizer.json. Throws DS_DATA for an unknown type or an invalid field.
 */
export const createModel = (location: string, content: unknown): Model =>
  new Fields(location, content).build(BUILDERS);

/**
 * Returns a function that returns the id of the unknown token, which only some texts need. The
 * function throws DS_DATA if the vocabulary lacks that token.
 */
function unknownIdReader(fields: Fields, ids: ReadonlyMap<string, number>): () => number {
  const token = fields.text('unk_token', fields.get('type') === 'WordPiece' ? '[UNK]' : '<unk>');
  return () => {
    const id = ids.get(token);
    if (id !== undefined) return id;
    const expected = `the unknown token ${JSON.stringify(token)} in the vocabulary`;
    throw dataError(
      fields.location,
      expected,
      'none',
      'Add the token: a text has parts that the vocabulary lacks.',
    );
  };
}

function createWordLevel(fields: Fields): Model {
  const vocabulary = readVocabulary(fields);
  const unknown = unknownIdReader(fields, vocabulary);
  return {
    ids: vocabulary,
    encode: (piece, ids) => {
      ids.push(vocabulary.get(piece) ?? unknown());
    },
  };
}

/** Limit of `max_input_chars_per_word`, because words take quadratic time. */
const MAX_IN_WORD = 10_000;

/**
 * Encodes a word by its longest prefix in the vocabulary, then the longest continuation, and so on.
 */
function createWordPiece(fields: Fields): Model {
  const vocabulary = readVocabulary(fields);
  const unknown = unknownIdReader(fields, vocabulary);
  const prefix = fields.text('continuing_subword_prefix', '##');
  const max = fields.count('max_input_chars_per_word', 100);
  if (max > MAX_IN_WORD) {
    throw fields.wrongError('max_input_chars_per_word', `at most ${MAX_IN_WORD}`, max);
  }
  const continuing = [...vocabulary].filter(([token]) => token.startsWith(prefix));
  const inner = new Trie(
    new Map(continuing.map(([token, id]) => [token.slice(prefix.length), id])),
  );
  const first = new Trie(vocabulary);
  const longestFrom = (piece: string, start: number): [number, number] | null => {
    let longest: [number, number] | null = null;
    (start > 0 ? inner : first).prefixes(piece, start, (end, id) => {
      longest = [id, end];
    });
    return longest;
  };
  return {
    ids: vocabulary,
    encode: (piece, ids) => {
      const pieceIds: number[] = [];
      if (piece.length > max && Array.from(piece).length > max) {
        ids.push(unknown());
        return;
      }
      for (let at = 0; at < piece.length; ) {
        const found = longestFrom(piece, at);
        if (found === null) {
          ids.push(unknown());
          return;
        }
        pieceIds.push(found[0]);
        at = found[1];
      }
      ids.push(...pieceIds);
    },
  };
}
