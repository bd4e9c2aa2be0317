// The lower bound of a text's tokens: never above their number, and near it for the longest tokens.
import { join } from 'node:path';
import { packageRoot } from '../../lib/runtime/package-root.js';
import { Tokenizer } from '../../lib/text/index.js';
import { fewestTokens } from '../../lib/text/min-tokens.js';

const GOLDEN = join(__dirname, '../golden/transformers/tokenizers');
const composing = Tokenizer.fromPretrained(join(packageRoot(), 'examples', 'tokenizer'));
const plain = Tokenizer.fromPretrained(join(GOLDEN, 'llama3'));

const texts = [
  '',
  'a',
  'The quick brown fox jumps over the lazy dog. '.repeat(40),
  ' '.repeat(1000),
  'e\u0301'.repeat(300), // An accent that is composed with its letter.
  '\u03b1\u0313\u0300\u0345'.repeat(100), // Four characters that become one.
  'a\u0323\u0307b\u0307\u0323'.repeat(50),
  '\u212b\u2126\u212a'.repeat(100), // Signs that become letters.
  '\u1112\u1161\u11ab'.repeat(100), // Letters that become a syllable.
  '日本語テキスト👩‍👩‍👧‍👦\ud800'.repeat(50),
  '<|endoftext|><|im_start|>user\n'.repeat(60),
];

test.each([
  ['NFC', composing],
  ['no normalizer', plain],
])('is never above the number of tokens: %s', (_, tokenizer) => {
  for (const text of texts) {
    const fewest = tokenizer.fewestTokens(text);
    expect(fewest).toBeLessThanOrEqual(tokenizer.encode(text, { addSpecialTokens: false }).length);
    if (text.length > 500) expect(fewest).toBeGreaterThan(0);
  }
});

test('returns no bound if a tokenizer may drop a part of the text', () => {
  for (const name of ['mistral', 'llama2']) {
    expect(Tokenizer.fromPretrained(join(GOLDEN, name)).fewestTokens('a'.repeat(1e5))).toBe(0);
  }
  // An added token takes the blanks before it along.
  expect(Tokenizer.fromPretrained(join(GOLDEN, 'gpt2')).fewestTokens(' '.repeat(1e5))).toBe(0);
});

test('uses the longest token', () => {
  const letters = Array.from({ length: 256 }, (_, byte) => {
    const isPrintable = (byte >= 33 && byte <= 126) || (byte >= 161 && byte !== 173);
    return isPrintable ? String.fromCodePoint(byte) : null;
  });
  let next = 256;
  const alphabet = letters.map((letter) => letter ?? String.fromCodePoint(next++));
  const options = {
    tokenizer: { model: { type: 'BPE' }, pre_tokenizer: { type: 'ByteLevel' } },
    config: {},
    vocab: [...alphabet, 'aaaa'],
    added: [],
  };
  expect(fewestTokens(options)?.('a'.repeat(9))).toBe(3);
  expect(fewestTokens(options)?.('é'.repeat(9))).toBe(5);
  const others = [
    { ...options, vocab: alphabet.slice(1) },
    { ...options, config: { remove_space: true } },
    { ...options, tokenizer: { ...options.tokenizer, normalizer: { type: 'Lowercase' } } },
    { ...options, tokenizer: { ...options.tokenizer, model: { type: 'Unigram' } } },
    { ...options, tokenizer: { ...options.tokenizer, pre_tokenizer: { type: 'Whitespace' } } },
  ];
  for (const other of others) expect(fewestTokens(other)).toBeNull();
});
