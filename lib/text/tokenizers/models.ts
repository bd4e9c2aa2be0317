// Models of a tokenizer.json: from a piece of text to ids.
import { dataError } from '../../runtime/input-errors.js';
import { bpe } from './bpe.js';
import { Fields } from './fields.js';
import type { Model } from './model.js';
import { Trie } from './trie.js';
import { unigram } from './unigram.js';
import { vocabularyOf } from './vocabulary.js';

const BUILDERS: ReadonlyMap<string, (fields: Fields) => Model> = new Map([
  ['BPE', bpe],
  ['WordPiece', wordPiece],
  ['Unigram', unigram],
  ['WordLevel', wordLevel],
]);

/** The model of a tokenizer.json. Throws DS_DATA. */
export const modelOf = (location: string, content: unknown): Model =>
  new Fields(location, content).build(BUILDERS);

/** The id of the unknown token, which only some texts need. Throws DS_DATA. */
function unknownOf(fields: Fields, ids: ReadonlyMap<string, number>): () => number {
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

function wordLevel(fields: Fields): Model {
  const vocabulary = vocabularyOf(fields);
  const unknown = unknownOf(fields, vocabulary);
  return {
    ids: vocabulary,
    encode: (piece, ids) => {
      ids.push(vocabulary.get(piece) ?? unknown());
    },
  };
}

/** A limit of `max_input_chars_per_word`: words take quadratic time. */
const MAX_IN_WORD = 10_000;

/** The longest token of the vocabulary first, then the longest one that continues, and so on. */
function wordPiece(fields: Fields): Model {
  const vocabulary = vocabularyOf(fields);
  const unknown = unknownOf(fields, vocabulary);
  const prefix = fields.text('continuing_subword_prefix', '##');
  const max = fields.count('max_input_chars_per_word', 100);
  if (max > MAX_IN_WORD) {
    throw fields.wrong('max_input_chars_per_word', `at most ${MAX_IN_WORD}`, max);
  }
  const continuing = [...vocabulary].filter(([token]) => token.startsWith(prefix));
  const inner = new Trie(
    new Map(continuing.map(([token, id]) => [token.slice(prefix.length), id])),
  );
  const first = new Trie(vocabulary);
  const longestFrom = (piece: string, start: number): [number, number] | null => {
    let found: [number, number] | null = null;
    (start > 0 ? inner : first).prefixes(piece, start, (end, id) => {
      found = [id, end];
    });
    return found;
  };
  return {
    ids: vocabulary,
    encode: (piece, ids) => {
      const own: number[] = [];
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
        own.push(found[0]);
        at = found[1];
      }
      ids.push(...own);
    },
  };
}
