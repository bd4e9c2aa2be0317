// Damaged and hostile tokenizer files: errors name the place, and no text freezes the process.
import { CoreTokenizer } from '../../lib/text/tokenizers/core.js';
import { expectError } from './folders.js';

const MODEL = { type: 'WordLevel', vocab: { '<unk>': 0, a: 1 }, unk_token: '<unk>' };

function coreOf(parts: object): CoreTokenizer {
  const none = { normalizer: null, pre_tokenizer: null, post_processor: null, decoder: null };
  return new CoreTokenizer('t.json', { added_tokens: [], ...none, model: MODEL, ...parts });
}

const slow = { Regex: '(a+)+$' };
const longText = `${'a'.repeat(5000)}b`;

test.each<[string, object]>([
  ['a Split', { pre_tokenizer: { type: 'Split', pattern: slow, behavior: 'Isolated' } }],
  ['a Replace', { normalizer: { type: 'Replace', pattern: slow, content: '' } }],
  ['a decoder', { decoder: { type: 'Replace', pattern: slow, content: '' } }],
])('a pattern of %s that backtracking engines never finish', (_, parts) => {
  const core = coreOf({ ...parts, model: { ...MODEL, vocab: { '<unk>': 0, [longText]: 1 } } });
  expect(core.encode(longText)).toEqual([1]);
  expect(core.decode([1])).toBe(longText);
});

test('a slow pattern is refused when a text triggers it', () => {
  const pattern = { Regex: 'a*b|a' };
  const core = coreOf({ pre_tokenizer: { type: 'Split', pattern, behavior: 'Isolated' } });
  expectError(
    () => core.encode('a'.repeat(20_000)),
    'DS_DATA',
    /t\.json pre_tokenizer\.pattern\.Regex: .*too many steps, in the pattern "a\*b\|a"/,
  );
});

test('steps that lengthen a text are refused before they exhaust memory', () => {
  const step = { type: 'Replace', pattern: { String: 'a' }, content: 'a'.repeat(1000) };
  const core = coreOf({ normalizer: { type: 'Sequence', normalizers: Array(9).fill(step) } });
  expectError(
    () => core.encode('a'),
    'DS_DATA',
    /normalizers\[2\]: expected texts of at most 67108864/,
  );
});

const PROTOTYPE_NAMES = ['constructor', '__proto__', 'toString', 'hasOwnProperty', 'valueOf'];

test.each(PROTOTYPE_NAMES)('a step of type "%s" is unknown', (type) => {
  for (const part of ['normalizer', 'pre_tokenizer', 'decoder', 'post_processor', 'model']) {
    expectError(
      () => coreOf({ [part]: { type } }),
      'DS_DATA',
      new RegExp(`t\\.json ${part}\\.type: expected .*, got "${type}"`),
    );
  }
});

test.each(PROTOTYPE_NAMES)('"%s" may be a token, and is else unknown', (word) => {
  expect(coreOf({}).encode(word)).toEqual([0]);
  expect(coreOf({}).idOf(word)).toBeUndefined();
  const vocab = JSON.parse(`{"<unk>": 0, "${word}": 1}`) as object;
  expect(coreOf({ model: { ...MODEL, vocab } }).encode(word)).toEqual([1]);
  const pieces = { type: 'WordPiece', vocab, unk_token: '<unk>' };
  expect(coreOf({ model: pieces }).encode(word)).toEqual([1]);
});

let nested: object = { type: 'NFC' };
for (let i = 0; i < 20_000; ++i) nested = { type: 'Sequence', normalizers: [nested] };

const merges = (...list: unknown[]): object => ({
  model: { type: 'BPE', vocab: { a: 0, b: 1 }, merges: list },
});

test.each<[string, object, RegExp]>([
  [
    'a huge id',
    { model: { ...MODEL, vocab: { a: 4e9 } } },
    /model\.vocab\["a"\]: expected ids of \[0, 16777216\), got 4000000000/,
  ],
  ['an id that is no number', { model: { ...MODEL, vocab: { a: '1' } } }, /expected ids/],
  ['a negative id', { model: { ...MODEL, vocab: { a: -1 } } }, /expected ids/],
  [
    'a huge id of an added token',
    { added_tokens: [{ id: 4e9, content: 'x' }] },
    /added_tokens\[0\]\.id: expected ids/,
  ],
  ['deep nesting', { normalizer: nested }, /at most 100 objects/],
  [
    'a vocabulary that is a list',
    { model: { ...MODEL, vocab: [] } },
    /model\.vocab: expected an object/,
  ],
  ['a merge of three', merges('a b c'), /merges\[0\]: expected two tokens/],
  ['a merge of numbers', merges([1, 2]), /merges\[0\]: expected two tokens/],
  [
    'a merge outside the vocabulary',
    merges('a b'),
    /merges\[0\]: .*got "ab", which the vocabulary lacks/,
  ],
  [
    'an unknown behavior',
    { pre_tokenizer: { type: 'Punctuation', behavior: 'Magic' } },
    /behavior: expected Removed, /,
  ],
  [
    'an empty delimiter',
    { pre_tokenizer: { type: 'CharDelimiterSplit', delimiter: '' } },
    /delimiter: expected one character, got ""/,
  ],
  [
    'an empty mark',
    { pre_tokenizer: { type: 'Metaspace', replacement: '' } },
    /replacement: expected one character/,
  ],
  [
    'words without a limit',
    { model: { ...MODEL, type: 'WordPiece', max_input_chars_per_word: 1e9 } },
    /max_input_chars_per_word: expected at most 10000/,
  ],
  ['a length of 0', { pre_tokenizer: { type: 'FixedLength', length: 0 } }, /length: expected/],
  [
    'a pattern that is a number',
    { pre_tokenizer: { type: 'Split', pattern: { Regex: 5 } } },
    /pattern\.Regex: expected a string, got 5/,
  ],
  [
    'a backreference',
    { normalizer: { type: 'Replace', pattern: { Regex: '(a)\\1' }, content: '' } },
    /\\1 is not supported/,
  ],
  [
    'a score that is a text',
    { model: { type: 'Unigram', vocab: [['a', '1']] } },
    /vocab\[0\]: expected a token and its score/,
  ],
  [
    'a template without the text',
    { post_processor: { type: 'TemplateProcessing', single: [], special_tokens: {} } },
    /adds tokens before and after a text/,
  ],
  [
    'a damaged table',
    { normalizer: { type: 'Precompiled', precompiled_charsmap: 'AAAA' } },
    /a table of SentencePiece/,
  ],
])('%s is named', (_, parts, message) => expectError(() => coreOf(parts), 'DS_DATA', message));

test.each<[string, object]>([
  ['WordLevel', { type: 'WordLevel', vocab: { a: 0 }, unk_token: '<unk>' }],
  ['WordPiece', { type: 'WordPiece', vocab: { a: 0 }, unk_token: '<unk>' }],
  ['BPE', { type: 'BPE', vocab: { a: 0 }, merges: [], unk_token: '<unk>' }],
  ['Unigram', { type: 'Unigram', vocab: [['a', 0]], unk_id: null }],
])('a text beyond the vocabulary of a %s without an unknown token is refused', (_, model) => {
  const core = coreOf({ model });
  expect(core.encode('a')).toEqual([0]);
  expectError(
    () => core.encode('b'),
    'DS_DATA',
    /t\.json model: expected (the unknown token|an "unk_id")/,
  );
});
