// A byte order mark before the text of a model's or a tokenizer's files changes nothing.
import { cpSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { peft, text } from '../../lib/index.js';
import { packageRoot } from '../../lib/runtime/package-root.js';
import { isEncoderFolder } from '../../lib/serve/encoder-engine.js';
import { TOKENIZERS } from '../models/head-rows.js';
import { tinyLlama } from '../peft/models.js';

const dir = mkdtempSync(join(tmpdir(), 'ds-bom-'));
afterAll(() => rmSync(dir, { recursive: true }));

/** Copies `files` of `source` to a folder, with a mark before each. */
function marked(name: string, source: string, files: readonly string[]): string {
  const folder = join(dir, name);
  cpSync(source, folder, { recursive: true });
  for (const file of files) {
    writeFileSync(join(folder, file), `\ufeff${readFileSync(join(source, file), 'utf8')}`);
  }
  return folder;
}

const describe = (folder: string): unknown => {
  const tokenizer = text.Tokenizer.fromPretrained(folder);
  const { padId, eosId, vocabSize } = tokenizer;
  const messages = [{ role: 'user', content: 'hi' }] as const;
  const prompt = tokenizer.templateText('default') && tokenizer.applyChatTemplate([...messages]);
  return { padId, eosId, vocabSize, ids: tokenizer.encode('a good film'), prompt };
};

test('the files of tokenizers', () => {
  const source = join(dir, 'source');
  cpSync(join(packageRoot(), 'examples', 'tokenizer'), source, { recursive: true });
  writeFileSync(join(source, 'special_tokens_map.json'), '{}');
  writeFileSync(join(source, 'chat_template.jinja'), '{{ messages[0].content }}');
  const files = ['tokenizer.json', 'tokenizer_config.json', 'special_tokens_map.json'];
  const folder = marked('tokenizer', source, [...files, 'chat_template.jinja']);
  expect(describe(folder)).toEqual(describe(source));
  const pieces = join(TOKENIZERS, 'wordpiece');
  expect(describe(marked('pieces', pieces, ['vocab.txt']))).toEqual(describe(pieces));
});

test('adapter_config.json, and config.json of an encoder', async () => {
  const source = join(dir, 'adapter-source');
  await peft.saveAdapter(peft.addLora(tinyLlama(), { r: 2 }), source);
  const folder = marked('adapter', source, ['adapter_config.json']);
  expect(peft.lorasOf(await peft.loadAdapter(tinyLlama(), folder)).size).toBeGreaterThan(0);
  writeFileSync(
    join(folder, 'config.json'),
    `\ufeff${JSON.stringify({ architectures: ['BertForMaskedLM'] })}`,
  );
  expect(await isEncoderFolder(folder)).toBe(true);
});
