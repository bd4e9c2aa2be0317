// Empty spellings, empty texts and starts of texts, as the Rust crate tokenizers 0.23.2 has them.
import { CoreTokenizer } from '../../lib/text/tokenizers/core.js';

const wordLevel = (words: readonly string[]): object => ({
  type: 'WordLevel',
  vocab: Object.fromEntries(words.map((word, id) => [word, id])),
  unk_token: '<unk>',
});
const model = wordLevel(['<unk>', '<', '>', '<>', ' ', 'x', '▁x', '▁', 'é']);

function coreOf(parts: object): CoreTokenizer {
  const none = { normalizer: null, pre_tokenizer: null, post_processor: null, decoder: null };
  return new CoreTokenizer('tokenizer.json', { added_tokens: [], ...none, model, ...parts });
}

/** A tokenizer with the added token "ab", of which its normalizer leaves nothing. */
function emptyToken(options: object): object {
  const flags = { single_word: false, lstrip: false, rstrip: false, normalized: true };
  return {
    added_tokens: [{ id: 9, content: 'ab', ...flags, special: false, ...options }],
    normalizer: { type: 'Replace', pattern: { Regex: '[a-c]+' }, content: '' },
  };
}

test.each<[string, object, string, number[]]>([
  ['splits a text between all characters', {}, '<>', [1, 2]],
  ['is white space with rstrip', { rstrip: true }, '< >', [1, 9, 2]],
  ['is white space with lstrip', { lstrip: true }, '<> ', [1, 2, 9]],
  ['is not found inside a word with single_word', { single_word: true }, '<>x', [1, 0]],
  ['keeps surrogates together', {}, '<\u{1f600}', [1, 0]],
])('an added token that is normalized to nothing %s', (_, options, text, ids) =>
  expect(coreOf(emptyToken(options)).encode(text)).toEqual(ids),
);

const first = { type: 'Metaspace', replacement: '▁', prepend_scheme: 'first', split: false };
const single = { type: 'FixedLength', length: 1 };
const steps = (...pretokenizers: object[]): object => ({ type: 'Sequence', pretokenizers });
const singles = steps(single, first);
const strip = { type: 'Strip', strip_left: true, strip_right: true };
const prepend = { type: 'Prepend', prepend: '▁' };

test.each<[string, object, string, number[]]>([
  ['a prepended one', { normalizer: prepend, pre_tokenizer: singles }, 'xx', [7, 6, 5]],
  [
    'its bytes',
    {
      normalizer: { type: 'ByteLevel' },
      pre_tokenizer: singles,
      model: wordLevel(['<unk>', '▁Ã', '▁©', 'x']),
    },
    'éx',
    [1, 2, 3],
  ],
  [
    'what replaces it',
    {
      normalizer: { type: 'Replace', pattern: { String: 'x' }, content: 'yz' },
      pre_tokenizer: singles,
      model: wordLevel(['<unk>', '▁y', '▁z', 'y', 'z']),
    },
    'xx',
    [1, 2, 3, 4],
  ],
  [
    'nothing that replaces the second',
    {
      normalizer: { type: 'Replace', pattern: { Regex: '(?<=x)y' }, content: 'z' },
      pre_tokenizer: singles,
      model: wordLevel(['<unk>', '▁x', '▁z', 'y', 'z']),
    },
    'xy',
    [1, 4],
  ],
  [
    'the mark of a step before',
    { pre_tokenizer: steps({ ...first, prepend_scheme: 'always' }, single, first) },
    'xx',
    [7, 6, 5],
  ],
  [
    'the space of a ByteLevel step',
    {
      pre_tokenizer: steps({ type: 'ByteLevel', add_prefix_space: true, use_regex: true }, first),
      model: wordLevel(['<unk>', '▁Ġ', '▁Ċ', 'x', '▁Ġx']),
    },
    '\nx',
    [1, 2, 3],
  ],
  [
    'what a split leaves of it',
    {
      pre_tokenizer: steps(
        first,
        { type: 'Split', pattern: { Regex: 'x' }, behavior: 'Removed', invert: true },
        first,
      ),
    },
    'x x',
    [6, 5],
  ],
  ['it where blanks behind it go', { normalizer: strip, pre_tokenizer: singles }, 'x ', [6]],
  [
    'nothing where a normalizer drops it',
    {
      normalizer: { type: 'Sequence', normalizers: [strip, prepend] },
      pre_tokenizer: singles,
    },
    ' x',
    [7, 5],
  ],
])('the mark of the first character is put before %s', (_, parts, text, ids) =>
  expect(coreOf(parts).encode(text)).toEqual(ids),
);

test('an empty text has no match of a Replace', () => {
  const replace = { type: 'Replace', pattern: { Regex: 'b?' }, content: 'z' };
  const core = coreOf({
    decoder: { type: 'Sequence', decoders: [{ type: 'Fuse' }, replace] },
    model: wordLevel(['a', '']),
  });
  expect([[], [0], [1], [0, 1]].map((ids) => core.decode(ids))).toEqual(['', 'zaz', '', 'zaz']);
});
