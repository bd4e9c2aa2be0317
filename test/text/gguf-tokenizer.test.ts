// The tokenizer of a GGUF file: the same ids and texts as the folder that it was written from.
import { mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { writeGguf } from '../../lib/checkpoint/index.js';
import {
  createTokenizerFiles,
  createTokenizerMetadata,
  hasTokenizer,
} from '../../lib/text/gguf-tokenizer.js';
import { Tokenizer } from '../../lib/text/index.js';

const golden = join('test', 'golden', 'transformers', 'tokenizers');
const kinds = readdirSync(golden).filter((name) => !name.endsWith('.json'));
const folder = mkdtempSync(join(tmpdir(), 'ds-gguf-'));
afterAll(() => rmSync(folder, { recursive: true }));

async function writeTokenizer(name: string, metadata: Parameters<typeof writeGguf>[1]['metadata']) {
  const path = join(folder, `${name}.gguf`);
  await writeGguf(path, { metadata, tensors: [] }, async function* () {});
  return path;
}

test.each(kinds)('%s keeps ids, texts, special tokens and chats', async (kind) => {
  const dir = join(golden, kind);
  const expected = Tokenizer.fromPretrained(dir);
  const path = await writeTokenizer(kind, createTokenizerMetadata(dir, 1200));
  const got = Tokenizer.fromPretrained(path);
  expect(hasTokenizer(path)).toBe(true);
  const texts = [
    "It's 12345 tokens.\n\n  x = 1;",
    'naïve Ünïcode 你好 🙂\t',
    '',
    // llama.cpp has no rule like Mistral's, which adds no space before one.
    ...(kind === 'mistral' ? [] : [' leading', '   ']),
  ];
  for (const text of texts) {
    for (const addSpecialTokens of [true, false]) {
      const ids = expected.encode(text, { addSpecialTokens });
      expect([...got.encode(text, { addSpecialTokens })]).toEqual([...ids]);
      expect(got.decode(ids)).toBe(expected.decode(ids));
    }
  }
  expect(got.eosId).toBe(expected.eosId);
  expect(got.bosId).toBe(expected.bosId);
  expect(got.templateText('default')).toBe(expected.templateText('default'));
  // Unused ids of a larger embedding have names.
  expect(got.vocabSize).toBe(1200);

  const back = join(folder, kind);
  writeFiles(back, createTokenizerFiles(path));
  expect([...Tokenizer.fromPretrained(back).encode(texts.join(' '))]).toEqual([
    ...expected.encode(texts.join(' ')),
  ]);
});

function writeFiles(dir: string, files: Readonly<Record<string, string>>): void {
  rmSync(dir, { recursive: true, force: true });
  mkdirSync(dir);
  for (const [name, content] of Object.entries(files)) writeFileSync(join(dir, name), content);
}

test('Gemma 4 has merges of characters, which do not cross lines', async () => {
  const dir = join(golden, 'llama2');
  const tokenizer = JSON.parse(readFileSync(join(dir, 'tokenizer.json'), 'utf8'));
  const { merges } = tokenizer.model as { merges: [string, string][] };
  const metadata = new Map(createTokenizerMetadata(dir, 1000));
  metadata.set('tokenizer.ggml.model', 'gemma4');
  metadata.set(
    'tokenizer.ggml.merges',
    merges.map((pair) => pair.join(' ')),
  );
  for (const key of ['scores', 'add_space_prefix']) metadata.delete(`tokenizer.ggml.${key}`);
  const got = Tokenizer.fromPretrained(await writeTokenizer('gemma4', metadata));
  // The same merges without lines, and without the space before a text.
  tokenizer.normalizer = tokenizer.normalizer.normalizers[1];
  tokenizer.decoder.decoders.pop();
  const plain = join(folder, 'plain');
  const config = readFileSync(join(dir, 'tokenizer_config.json'), 'utf8');
  writeFiles(plain, {
    'tokenizer.json': JSON.stringify(tokenizer),
    'tokenizer_config.json': config,
  });
  const lines = Tokenizer.fromPretrained(plain);
  for (const text of ['The engine |\n| reads\n\n  12 files;\n', '\n', 'naïve 你好 🙂', ' a']) {
    const parts = text.match(/[^\n]+|\n+/g) ?? [];
    const none = { addSpecialTokens: false };
    const expected = parts.flatMap((part) => [...lines.encode(part, none)]);
    expect([...got.encode(text, none)]).toEqual(expected);
    expect([...got.encode(text)]).toEqual([got.bosId, ...expected]);
    expect(got.decode(expected)).toBe(text);
  }
});

test('the error of a file without a tokenizer', async () => {
  const path = await writeTokenizer('none', createTokenizerMetadata(null, 10));
  expect(hasTokenizer(path)).toBe(false);
  expect(() => Tokenizer.fromPretrained(path)).toThrow(/tokenizer\.ggml\.model: .* got "none"/);
});

test('unknown rules of cutting are refused by name', async () => {
  const metadata = new Map([...createTokenizerMetadata(join(golden, 'gpt2'), 1100)]);
  metadata.set('tokenizer.ggml.pre', 'viking');
  const path = await writeTokenizer('pre', metadata);
  expect(() => Tokenizer.fromPretrained(path)).toThrow(/tokenizer\.ggml\.pre: .*"viking"/);
});

const END = "(?i:'s|'t|'re|'ve|'m|'ll|'d)";
const UPPER = '[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]';
const LOWER = '[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]';
const SIGN = '[^\\r\\n\\p{L}\\p{N}]?';
const SPACES = '\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+';

/** The expressions of published tokenizers. */
test.each([
  [
    'gpt-4o',
    [
      `${SIGN}${UPPER}*${LOWER}+${END}?|${SIGN}${UPPER}+${LOWER}*${END}?|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|${SPACES}`,
    ],
    ["It's CamelCase", ' and', ' HTTPServer', '123', '4', " we'LL", '//\n', '  '],
  ],
  [
    'qwen35',
    [`${END}|${SIGN}[\\p{L}\\p{M}]+|\\p{N}| ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|${SPACES}`],
    ['नमस्ते', ' 12', " it's", ' !!\n'],
  ],
  [
    'deepseek-v3',
    [
      '\\p{N}{1,3}',
      '[一-龥\u3040-ゟ゠-ヿ]+',
      '[!"#$%&\'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+',
    ],
    ['.toString', ' 你好', '12345', ' [x]'],
  ],
  [
    'deepseek-llm',
    [
      '[\r\n]',
      '\\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-ώᾀ-ᾴᾶ-ᾼιῂ-ῄῆ-ῌῐ-ΐῖ-Ίῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤΩℨK-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃]+',
      '\\s?[!-/:-~！-／：-～‘-‟\u3000-。]+',
      '\\s+$',
      '[一-龥ࠀ-一가-\ud7ff]+',
    ],
    ['.toString', ' 你好', '12345', ' [x]', ' Ünïcode', '한국어', '𐐀!\n', '  '],
  ],
  [
    'deepseek-coder',
    ['[\r\n]', '\\s?\\p{L}+', '\\s?\\p{P}+', '[一-龥ࠀ-一가-\ud7ff]+'],
    ['def f(x):\n', '    return x', '12', ' 你好', '한국어;\r\n'],
  ],
])('%s is written by its expressions, and read with them', async (pre, splits, texts) => {
  const dir = join(folder, `changed-${pre}`);
  const tokenizer = JSON.parse(readFileSync(join(golden, 'gpt2', 'tokenizer.json'), 'utf8'));
  const pretokenizers = [
    ...splits.map((Regex) => ({
      type: 'Split',
      pattern: { Regex },
      behavior: 'Isolated',
      invert: false,
    })),
    ...(/llm|coder/.test(pre) ? [{ type: 'Digits', individual_digits: true }] : []),
    { type: 'ByteLevel', add_prefix_space: false, trim_offsets: true, use_regex: false },
  ];
  const normalizer = pre === 'qwen35' ? { type: 'NFC' } : null;
  const changed = { ...tokenizer, normalizer, pre_tokenizer: { type: 'Sequence', pretokenizers } };
  writeFiles(dir, { 'tokenizer.json': JSON.stringify(changed), 'tokenizer_config.json': '{}' });
  const metadata = new Map(createTokenizerMetadata(dir, 1200));
  expect(metadata.get('tokenizer.ggml.pre')).toBe(pre);
  const [expected, got] = [dir, await writeTokenizer(pre, metadata)].map((place) =>
    Tokenizer.fromPretrained(place),
  ) as [Tokenizer, Tokenizer];
  const text = texts.join('');
  expect([...got.encode(text)]).toEqual([...expected.encode(text)]);
});

test('a vocabulary larger than the model is refused', () => {
  expect(() => createTokenizerMetadata(join(golden, 'gpt2'), 100)).toThrow(/at most 100 tokens/);
});
