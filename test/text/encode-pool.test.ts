// Encoding threads and the token cache end and fail without leaving anything behind.
import { mkdirSync, readdirSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { setImmediate as turn } from 'node:timers/promises';
import threads from 'node:worker_threads';

import { text } from '../../lib/index.js';
import { EncodePool } from '../../lib/text/encode-pool.js';
import { divideFiles, type FilePart } from '../../lib/text/row-files.js';
import { emptyFolder, expectRejection, removeFolders } from './folders.js';

const TOKENIZERS = join(__dirname, '..', 'golden', 'transformers', 'tokenizers');
const tokenizer = text.Tokenizer.fromPretrained(join(TOKENIZERS, 'qwen2'));
const folder = emptyFolder();
const path = join(folder, 'rows.jsonl');
writeFileSync(path, '{"text":"one two three"}\n');

afterAll(removeFolders);

const open = (options: object): Promise<text.TextDataset> =>
  text.TextDataset.open({ files: path, tokenizer, length: 64, threads: 0, ...options });

test('an unreadable cache is ignored; an unwritable one gives an error and leaves no files', async () => {
  const cache = join(folder, 'odd-cache');
  await open({ cache });
  const [name] = readdirSync(cache) as [string];
  rmSync(join(cache, name));
  mkdirSync(join(cache, name));
  await expectRejection(() => open({ cache }), 'DS_DATA', /odd-cache: .* a writable folder/);
  expect(readdirSync(cache)).toEqual([name]);
  // A file where the folder would be.
  await expectRejection(() => open({ cache: path }), 'DS_DATA', /a writable folder/);
});

test('a closed pool starts no thread, and rejects waiting callers', async () => {
  const [part] = (await divideFiles([path], false)) as [FilePart];
  const settings = { textKey: 'text', loss: null };
  const options = { tokenizer, settings, threads: 1, cache: null, timeoutMs: 60_000 };
  const pool = new EncodePool(options);
  const reader = pool.encode([part, part, part]);
  const first = expectRejection(
    () => reader.next(),
    'DS_DATA',
    /tokens from the thread of this part/,
  );
  await turn(); // The second part waits for the only thread.
  const start = jest.spyOn(threads, 'Worker');
  await pool.close();
  await first;
  for (let i = 0; i < 20; ++i) await turn();
  expect(start).not.toHaveBeenCalled();
  start.mockRestore();
  await expectRejection(() => pool.encode([part]).next(), 'DS_DATA', /a closed pool/);
});

test('threads use a chat template that replaces that of the folder', async () => {
  const place = join(TOKENIZERS, 'qwen2');
  const chatTemplate = "{% for m in messages %}{{ m['content'] }};{% endfor %}";
  const own = text.Tokenizer.fromPretrained(place, { chatTemplate });
  const chats = join(folder, 'chats.jsonl');
  writeFileSync(chats, '{"messages":[{"role":"user","content":"one"}]}\n');
  const dataset = await open({ files: chats, tokenizer: own, packing: false, threads: 1 });
  expect(own.decode(dataset.get(0).ids)).toBe('one;');
  expect(own.fingerprint).not.toBe(tokenizer.fingerprint);
  const odd = { chatTemplate: 3 as never };
  await expectRejection(
    async () => text.Tokenizer.fromPretrained(place, odd),
    'DS_ARGUMENT',
    /chatTemplate: expected a string/,
  );
});
