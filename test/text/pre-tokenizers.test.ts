// Where pre-tokenizers cut a text, as the Rust crate does, with tokenizers of a few words.
import { text } from '../../lib/index.js';
import { folderOf, removeFolders } from './folders.js';

afterAll(removeFolders);

/** Of a tokenizer that has the words as tokens, and else single letters. */
function tokenizerOf(words: readonly string[], parts: object, model: object = {}): text.Tokenizer {
  const letters = [...new Set(words.flatMap((word) => Array.from(word)))];
  const vocab = Object.fromEntries(
    [...new Set([...letters, ...words])].map((text, i) => [text, i]),
  );
  const bpe = { type: 'BPE', vocab, merges: [], ignore_merges: true, ...model };
  const empty = { normalizer: null, pre_tokenizer: null, post_processor: null, decoder: null };
  return text.Tokenizer.fromPretrained(
    folderOf({ added_tokens: [], ...empty, ...parts, model: bpe }),
  );
}

const spellParts = (tokenizer: text.Tokenizer, input: string): string =>
  [...tokenizer.encode(input)].map((id) => tokenizer.idToToken(id)).join('|');

/** All that a text may be cut into: each piece is a token, and so the pieces show. */
const partsOf = (input: string): string[] =>
  Array.from(input, (_, from) =>
    Array.from(input.slice(from), (_, i) => input.slice(from, from + i + 1)),
  ).flat();

const split = (pattern: object, behavior: string, invert = false): object => ({
  type: 'Split',
  pattern,
  behavior,
  invert,
});

test.each<[string, object, string, string]>([
  ['Digits', { type: 'Digits', individual_digits: true }, 'a²³٤b½', 'a|²|³|٤|b|½'],
  ['Digits', { type: 'Digits', individual_digits: false }, 'a²٤b1½', 'a|²٤|b|1½'],
  ['Punctuation', { type: 'Punctuation' }, 'a!?«b', 'a|!|?|«|b'],
  ['Punctuation', { type: 'Punctuation', behavior: 'Isolated' }, 'a!?b', 'a|!|?|b'],
  ['Punctuation', { type: 'Punctuation', behavior: 'Contiguous' }, 'a!?b', 'a|!?|b'],
  ['Punctuation', { type: 'Punctuation', behavior: 'Removed' }, 'a!?b', 'a|b'],
  ['Whitespace', { type: 'Whitespace' }, 'café\u0085naïve!! \uFEFFx', 'café|naïve|!!|\uFEFF|x'],
  ['joiners in words', { type: 'Whitespace' }, 'نمی\u200cخ \u200d.', 'نمی\u200cخ|\u200d|.'],
  ['BertPreTokenizer', { type: 'BertPreTokenizer' }, 'a!\u0085b\uFEFFb$', 'a|!|b\uFEFFb|$'],
  ['FixedLength', { type: 'FixedLength', length: 2 }, 'a😀b😀😀', 'a😀|b😀|😀'],
  ['WhitespaceSplit', { type: 'WhitespaceSplit' }, 'a!\u0085b\uFEFFb a', 'a!|b\uFEFFb|a'],
  ['a text that is removed', split({ String: '.*' }, 'Removed'), 'a.*b.*a', 'a|b|a'],
  ['a text that stays', split({ String: '.*' }, 'Isolated'), 'a.*b', 'a|.*|b'],
  ['what lies between', split({ Regex: '[ab]+' }, 'Isolated', true), 'ab!?ba', 'ab|!?|ba'],
  ['what is no word', split({ Regex: '[ab]+' }, 'Removed', true), 'ab!?ba', 'ab|ba'],
])('%s', (_, pre_tokenizer, input, expected) => {
  const words = partsOf(input);
  const alone = tokenizerOf(words, { pre_tokenizer });
  expect(spellParts(alone, input)).toBe(expected);
  const sequence = { type: 'Sequence', pretokenizers: [pre_tokenizer] };
  expect(spellParts(tokenizerOf(words, { pre_tokenizer: sequence }), input)).toBe(expected);
});

test('bytes are cut as GPT-2 has it where a text has U+FEFF and U+0085', () => {
  const words = ['Ġï»¿', 'ï»¿#', 'Ġ', 'ÂĦ', 'ÂħÂħ', 'Âħ', 'x'];
  const bytes = { type: 'ByteLevel', add_prefix_space: false, trim_offsets: true };
  for (const own of [bytes, { ...bytes, use_regex: true }]) {
    const of = tokenizerOf(words, { pre_tokenizer: own });
    expect(spellParts(of, 'x \uFEFFx\uFEFF#\u0085\u0085x')).toBe('x|Ġï»¿|x|ï»¿#|Âħ|Âħ|x');
  }
});

test('a number behind a space is cut from it before the bytes are, as in SmolLM', () => {
  const steps = [
    { type: 'Digits', individual_digits: true },
    { type: 'ByteLevel', add_prefix_space: false, trim_offsets: true, use_regex: true },
  ];
  const of = tokenizerOf(['ĠÂ²', 'Â²', 'Ġ', 'x'], {
    pre_tokenizer: { type: 'Sequence', pretokenizers: steps },
  });
  expect(spellParts(of, 'x ²')).toBe('x|Ġ|Â²');
});

test('a Metaspace of before prepend_scheme may put no mark before a text', () => {
  const metaspace = { type: 'Metaspace', replacement: '▁' };
  const cut = (pre_tokenizer: object): string =>
    spellParts(tokenizerOf(['a', '▁a', '▁b'], { pre_tokenizer }), 'a b');
  expect(cut({ ...metaspace, add_prefix_space: false })).toBe('a|▁b');
  expect(cut({ ...metaspace, add_prefix_space: true })).toBe('▁a|▁b');
  expect(cut({ ...metaspace, prepend_scheme: 'never', add_prefix_space: false })).toBe('a|▁b');
});

test('unknown pieces within a word are joined; those of separate words are not', () => {
  const settings = { unk_token: '<unk>', fuse_unk: true };
  const split = { type: 'WhitespaceSplit' };
  const of = tokenizerOf(['a', '<unk>'], { pre_tokenizer: split }, settings);
  expect(spellParts(of, 'xya xx yy a')).toBe('<unk>|a|<unk>|<unk>|a');
  const vocab = ['<unk>', 'a'].map((text, i) => [text, -i]);
  const unigram = { type: 'Unigram', vocab, unk_id: 0, merges: undefined };
  expect(spellParts(tokenizerOf([], { pre_tokenizer: split }, unigram), 'xx yya')).toBe(
    '<unk>|<unk>|a',
  );
});

test('Metaspace removes the leading space that it added', () => {
  const decodeSpaces = (scheme: object): string => {
    const metaspace = { type: 'Metaspace', replacement: '▁', split: true, ...scheme };
    const of = tokenizerOf(['▁', 'a', '▁a'], { pre_tokenizer: metaspace, decoder: metaspace });
    return of.decode(of.encode(' a a'));
  };
  expect(decodeSpaces({ prepend_scheme: 'never' })).toBe(' a a');
  expect(decodeSpaces({ add_prefix_space: false })).toBe(' a a');
  expect(decodeSpaces({ prepend_scheme: 'always' })).toBe('a a');
});

test('Unigram falls back to byte tokens', () => {
  const bytes = [0xf0, 0x9f, 0x98, 0x80].map((value) => `<0x${value.toString(16).toUpperCase()}>`);
  const vocab = ['<unk>', ...bytes, '▁', 'a', '▁a'].map((text, i) => [text, -i]);
  const parts = {
    added_tokens: [{ id: 0, content: '<unk>', special: true }],
    pre_tokenizer: { type: 'Metaspace', replacement: '▁', prepend_scheme: 'always' },
    decoder: {
      type: 'Sequence',
      decoders: [
        { type: 'Replace', pattern: { String: '▁' }, content: ' ' },
        { type: 'ByteFallback' },
        { type: 'Fuse' },
        { type: 'Strip', content: ' ', start: 1, stop: 0 },
      ],
    },
  };
  const unigram = { type: 'Unigram', vocab, unk_id: 0, merges: undefined };
  const of = tokenizerOf([], parts, { ...unigram, byte_fallback: true });
  expect(spellParts(of, 'a😀a')).toBe(`▁a|${bytes.join('|')}|a`);
  expect(of.decode(of.encode('a😀a'))).toBe('a😀a');
  expect(spellParts(of, 'aé')).toBe('▁a|<unk>');
  const plain = tokenizerOf([], parts, { ...unigram, byte_fallback: false });
  expect(spellParts(plain, 'a😀a')).toBe('▁a|<unk>|a');
});

test('a tokenizer without a token for each letter has bounds, too', () => {
  const bos = { id: 9, content: '<s>', special: true };
  const post_processor = {
    type: 'TemplateProcessing',
    single: [{ SpecialToken: { id: '<s>', type_id: 0 } }, { Sequence: { id: 'A', type_id: 0 } }],
    pair: [],
    special_tokens: { '<s>': { id: '<s>', ids: [9], tokens: ['<s>'] } },
  };
  expect(spellParts(tokenizerOf(['ACGT'], { added_tokens: [bos], post_processor }), 'CA')).toBe(
    '<s>|C|A',
  );
});
