// The tokenizer of a GGUF file: the same ids and texts as the folder that it was written from.
import { mkdirSync, mkdtempSync, readdirSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { writeGguf } from '../../lib/checkpoint/index.js';
import { ggufTokenizer, hasTokenizer, tokenizerFilesOf } from '../../lib/text/gguf-tokenizer.js';
import { Tokenizer } from '../../lib/text/index.js';

const golden = join('test', 'golden', 'transformers', 'tokenizers');
const kinds = readdirSync(golden).filter((name) => !name.endsWith('.json'));
const folder = mkdtempSync(join(tmpdir(), 'ds-gguf-'));
afterAll(() => rmSync(folder, { recursive: true }));

async function written(name: string, metadata: Parameters<typeof writeGguf>[1]['metadata']) {
  const path = join(folder, `${name}.gguf`);
  await writeGguf(path, { metadata, tensors: [] }, async function* () {});
  return path;
}

test.each(kinds)('%s keeps ids, texts, special tokens and chats', async (kind) => {
  const dir = join(golden, kind);
  const expected = Tokenizer.fromPretrained(dir);
  const path = await written(kind, ggufTokenizer(dir, 1200));
  const got = Tokenizer.fromPretrained(path);
  expect(hasTokenizer(path)).toBe(true);
  const texts = [
    ...["It's 12345 tokens.\n\n  x = 1;", 'naïve Ünïcode 你好 🙂\t', ''],
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
  writeFiles(back, tokenizerFilesOf(path));
  expect([...Tokenizer.fromPretrained(back).encode(texts.join(' '))]).toEqual([
    ...expected.encode(texts.join(' ')),
  ]);
});

function writeFiles(dir: string, files: Readonly<Record<string, string>>): void {
  rmSync(dir, { recursive: true, force: true });
  mkdirSync(dir);
  for (const [name, content] of Object.entries(files)) writeFileSync(join(dir, name), content);
}

test('the error of a file without a tokenizer', async () => {
  const path = await written('none', ggufTokenizer(null, 10));
  expect(hasTokenizer(path)).toBe(false);
  expect(() => Tokenizer.fromPretrained(path)).toThrow(/tokenizer\.ggml\.model: .* got "none"/);
});

test('unknown rules of cutting are refused by name', async () => {
  const metadata = new Map([...ggufTokenizer(join(golden, 'gpt2'), 1100)]);
  metadata.set('tokenizer.ggml.pre', 'chatglm-bpe');
  const path = await written('pre', metadata);
  expect(() => Tokenizer.fromPretrained(path)).toThrow(/tokenizer\.ggml\.pre: .*"chatglm-bpe"/);
});

test('a vocabulary larger than the model is refused', () => {
  expect(() => ggufTokenizer(join(golden, 'gpt2'), 100)).toThrow(/at most 100 tokens/);
});
