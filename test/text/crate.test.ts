// Tokenizers give the ids and texts of the Rust crate tokenizers 0.23.2.
import { readFileSync } from 'node:fs';
import { join } from 'node:path';

import { CoreTokenizer } from '../../lib/text/tokenizers/core.js';

/** [ids, ids with special tokens, text, text without special tokens]; null if the crate refuses. */
type Result = readonly [number[], number[], string, string?] | null;

const { randomTokenizer } = require('../../scripts/try-tokenizers/generator.cjs') as {
  randomTokenizer(seed: number): { tokenizer: Record<string, unknown>; texts: string[] };
};
const RECORDED = readFileSync(join(__dirname, '../golden/random-tokenizers.jsonl'), 'utf8')
  .trim()
  .split('\n')
  .map((line) => JSON.parse(line) as { seed: number; results: Result[] });

test('random tokenizers (scripts/try-tokenizers.mjs)', () => {
  expect(RECORDED.length).toBe(150);
  const wrong = RECORDED.filter(({ seed, results }) => {
    const { tokenizer, texts } = randomTokenizer(seed);
    const core = new CoreTokenizer('tokenizer.json', tokenizer);
    const special = (id: number): boolean => core.added.get(id)?.special === true;
    return texts.some((text, i) => {
      const result = results[i];
      if (!result) return false;
      const [bare, whole, decoded, skipped] = result;
      const ids = core.encode(text);
      const all = [...core.bounds.prefix, ...ids, ...core.bounds.suffix];
      const isSame = ids.join() === bare.join() && all.join() === whole.join();
      const skipping = core.decode(all.filter((id) => !special(id)));
      return !isSame || core.decode(all) !== decoded || (skipped ?? skipping) !== skipping;
    });
  });
  expect(wrong.map(({ seed }) => seed)).toEqual([]);
});

const wordLevel = (words: readonly string[]): object => ({
  type: 'WordLevel',
  vocab: Object.fromEntries(words.map((word, id) => [word, id])),
  unk_token: '<unk>',
});
const bpe = (options: object): object => ({
  type: 'BPE',
  dropout: null,
  unk_token: null,
  continuing_subword_prefix: null,
  end_of_word_suffix: null,
  fuse_unk: false,
  byte_fallback: false,
  ...options,
});
const addedTokens = (options: object): object[] => [
  { id: 9, content: '<m>', single_word: false, lstrip: false, rstrip: false, ...options },
];
const metaspace = { type: 'Metaspace', replacement: '▁', prepend_scheme: 'always', split: true };

function coreOf(parts: object): CoreTokenizer {
  const none = { normalizer: null, pre_tokenizer: null, post_processor: null, decoder: null };
  return new CoreTokenizer('tokenizer.json', { added_tokens: [], ...none, ...parts });
}

const abc = bpe({ vocab: { a: 0, b: 1, c: 2, ab: 3, abc: 4 }, merges: ['a b', 'ab c'] });
const marked = {
  added_tokens: addedTokens({ normalized: true }),
  normalizer: { type: 'Prepend', prepend: '▁' },
  decoder: metaspace,
  model: wordLevel(['<unk>', '▁a']),
};

test.each<[string, object, string, number[]]>([
  [
    'characters outside a vocabulary without an unknown token do not stop merges',
    { pre_tokenizer: { type: 'Whitespace' }, model: abc },
    'axb axbc x',
    [3, 4],
  ],
  [
    'U+0085 is white space beside an added token',
    {
      added_tokens: addedTokens({ lstrip: true, rstrip: true, normalized: false }),
      model: wordLevel(['<unk>', 'a', '\ufeff', '\u0085']),
    },
    'a\u0085<m>\u0085\u3000a',
    [1, 9, 1],
  ],
  [
    'U+FEFF is not white space beside an added token',
    {
      added_tokens: addedTokens({ lstrip: true, rstrip: true, normalized: false }),
      model: wordLevel(['<unk>', 'a\ufeff', '\ufeff']),
    },
    'a\ufeff<m>\ufeff',
    [1, 9, 2],
  ],
  [
    'U+0085 is white space to a Replace, U+FEFF is not',
    {
      normalizer: { type: 'Replace', pattern: { Regex: '\\s' }, content: '_' },
      pre_tokenizer: {
        type: 'Split',
        pattern: { String: '_' },
        behavior: 'Isolated',
        invert: false,
      },
      model: wordLevel(['<unk>', 'a', '_', '\ufeff', '\ufeffa']),
    },
    'a\u0085\ufeffa',
    [1, 2, 4],
  ],
  [
    'Chinese characters beyond U+FFFF are isolated',
    {
      normalizer: {
        type: 'BertNormalizer',
        clean_text: true,
        handle_chinese_chars: true,
        lowercase: false,
      },
      pre_tokenizer: { type: 'BertPreTokenizer' },
      model: wordLevel(['<unk>', 'a', '中', '\u{20000}']),
    },
    'a中a\u{20000}a',
    [1, 2, 1, 3, 1],
  ],
  [
    'the first piece gets no mark if the normalizer drops the first character',
    {
      normalizer: { type: 'Strip', strip_left: true, strip_right: false },
      pre_tokenizer: { ...metaspace, prepend_scheme: 'first' },
      model: wordLevel(['<unk>', 'a', '▁a', '▁b']),
    },
    ' a b',
    [1, 3],
  ],
  [
    'a token of single words is not found inside a word',
    {
      added_tokens: addedTokens({ content: 'ab', single_word: true, normalized: false }),
      pre_tokenizer: { type: 'Whitespace' },
      model: wordLevel(['<unk>', 'abc', 'xab', 'c', '-', 'éab']),
    },
    'ab abc xab ab-c éab',
    [9, 1, 2, 9, 4, 3, 5],
  ],
  [
    'a prefix of continuing tokens and a suffix of words',
    {
      model: bpe({
        continuing_subword_prefix: '##',
        end_of_word_suffix: '</w>',
        vocab: { a: 0, '##b': 1, '##b</w>': 2, 'ab</w>': 3, ab: 4 },
        merges: ['a ##b', 'a ##b</w>'],
      }),
    },
    'abb',
    [4, 2],
  ],
])('%s', (_, parts, input, ids) => expect(coreOf(parts).encode(input)).toEqual(ids));

test('a normalized added token decodes as its normalized form', () => {
  expect(coreOf(marked).decode([0, 9])).toBe('<unk> <m>');
  expect(coreOf(marked).decode([9])).toBe('<m>');
});

test('a run of bytes that is not UTF-8 decodes to U+FFFD for each byte', () => {
  const words = ['<0x4D>', '<0xF0>', 'a', '<0xC3>', '<0xA9>', '<0xEF>', '<0xBB>', '<0xBF>'];
  const core = coreOf({ decoder: { type: 'ByteFallback' }, model: wordLevel(words) });
  expect(core.decode([2, 0, 1, 2, 3, 4])).toBe('a\ufffd\ufffda\u00e9');
  expect(core.decode([5, 6, 7])).toBe('\ufeff');
  // A stream has a part of the text: valid bytes are text already.
  expect(core.decode([2, 0, 1], true)).toBe('aM\ufffd');
});

test('decoders get each byte that is not UTF-8 as a separate token', () => {
  const words = ['<0x4D>', '<0xF0>', 'a', '<0xC3>', '<0xA9>'];
  const decodeIds = (behind: object, ids: number[]) => {
    const decoders = [{ type: 'ByteFallback' }, behind];
    return coreOf({ decoder: { type: 'Sequence', decoders }, model: wordLevel(words) }).decode(ids);
  };
  const spaced = { type: 'WordPiece', prefix: '##', cleanup: false };
  expect(decodeIds(spaced, [2, 0, 1, 2, 3, 4])).toBe('a \ufffd \ufffd a \u00e9');
  // CTC joins equal tokens side by side.
  const ctc = { type: 'CTC', pad_token: '<s>', word_delimiter_token: '|', cleanup: false };
  expect(decodeIds(ctc, [2, 0, 1, 1, 2])).toBe('a\ufffda');
});

test.each<[string, string[], string[]]>([
  ['Removed', ['a', 'b', 'c'], ['!', '?']],
  ['Isolated', ['a', '!', '?', 'b', '.', 'c'], ['a', '!', '?', 'b.c']],
  ['MergedWithPrevious', ['a!', '?', 'b.', 'c'], ['a', '!', '?b.c']],
  ['MergedWithNext', ['a', '!', '?b', '.c'], ['a!', '?', 'b.c']],
  ['Contiguous', ['a', '!?', 'b', '.', 'c'], ['a', '!?', 'b.c']],
])('splits that are %s', (behavior, byMark, inverted) => {
  const pieces = (pre_tokenizer: object): string[] => {
    const words = [...new Set(['<unk>', ...byMark, ...inverted])];
    const core = coreOf({ pre_tokenizer, model: wordLevel(words) });
    return core.encode('a!?b.c').map((id) => words[id] as string);
  };
  expect(pieces({ type: 'Punctuation', behavior })).toEqual(byMark);
  const pattern = { Regex: '[!?]' };
  expect(pieces({ type: 'Split', pattern, behavior, invert: true })).toEqual(inverted);
});
