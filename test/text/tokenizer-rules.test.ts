// Token caches depend on the version of our rules.
import { createHash } from 'node:crypto';
import { join } from 'node:path';
import type { Tokenizer as TokenizerClass } from '../../lib/text/tokenizer.js';
import { TOKENIZER_RULES } from '../../lib/text/tokenizer-rules.js';
import { folderOf, removeFolders } from './folders.js';

const GPT2 = join(__dirname, '..', 'golden', 'transformers', 'tokenizers', 'gpt2');

afterAll(removeFolders);
afterEach(() => jest.dontMock('../../lib/text/tokenizer-rules.js'));

/** The class of a package that has these rules. */
function classWith(rules: number): typeof TokenizerClass {
  jest.resetModules();
  jest.doMock('../../lib/text/tokenizer-rules.js', () => ({ TOKENIZER_RULES: rules }));
  return require('../../lib/text/tokenizer.js').Tokenizer;
}

test('fingerprints differ if and only if the rules differ', () => {
  const of = (rules: number): string => classWith(rules).fromPretrained(GPT2).fingerprint;
  expect(of(7)).toBe(of(7));
  expect(of(7)).not.toBe(of(8));
});

/** Of tokenizers that have all characters and pieces of a text: ids show where it was cut. */
const STEPS: readonly object[] = [
  { pre_tokenizer: { type: 'Digits', individual_digits: false } },
  { pre_tokenizer: { type: 'Punctuation' } },
  { pre_tokenizer: { type: 'Whitespace' } },
  { pre_tokenizer: { type: 'WhitespaceSplit' } },
  { pre_tokenizer: { type: 'ByteLevel', add_prefix_space: false, use_regex: true } },
  { pre_tokenizer: { type: 'Metaspace', replacement: '▁', prepend_scheme: 'always' } },
  { pre_tokenizer: { type: 'Split', pattern: { Regex: '[a-z]+' }, behavior: 'Removed' } },
  { normalizer: { type: 'NFKC' } },
  { normalizer: { type: 'Lowercase' } },
];

const SAID = "It's 12³ ½ naïve…  \u0085\uFEFFＡ﷽ e\u0301🙂 x_y\n\n«Ω»";

test('the rules are the ones that these ids were recorded by', () => {
  const letters = Array.from({ length: 0x2e00 }, (_, code) => String.fromCharCode(code));
  const characters = Array.from(SAID);
  const pieces = characters.flatMap((_, from) =>
    characters.slice(from).map((__, i) => characters.slice(from, from + i + 1).join('')),
  );
  const tokens = [...new Set(['<unk>', ...letters, ...pieces])];
  const vocab = Object.fromEntries(tokens.map((token, id) => [token, id]));
  const settings = { unk_token: '<unk>', ignore_merges: true };
  const model = { type: 'BPE', vocab, merges: [], ...settings };
  const none = { normalizer: null, pre_tokenizer: null, post_processor: null, decoder: null };
  const { Tokenizer } = jest.requireActual('../../lib/text/tokenizer.js');
  const ids = STEPS.map((step) => {
    const content = { added_tokens: [], ...none, ...step, model };
    return [...Tokenizer.fromPretrained(folderOf(content)).encode(SAID)];
  });
  const digest = createHash('sha256').update(JSON.stringify(ids)).digest('hex');
  // Another digest is another cut: raise TOKENIZER_RULES, and record both here.
  expect({ rules: TOKENIZER_RULES, digest: digest.slice(0, 16) }).toEqual({
    rules: 7,
    digest: '9b08a43e4abe944a',
  });
});
