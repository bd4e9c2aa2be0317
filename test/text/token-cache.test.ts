// The token cache: which files it accepts, and which files it leaves in its folder.
import { execFileSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import {
  lstatSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  rmSync,
  symlinkSync,
  utimesSync,
  writeFileSync,
} from 'node:fs';
import { join } from 'node:path';

import { text } from '../../lib/index.js';
import { emptyFolder, removeFolders } from './folders.js';

const tokenizer = join(__dirname, '..', 'golden', 'transformers', 'tokenizers', 'qwen2');
const folder = emptyFolder();
const path = join(folder, 'rows.jsonl');
writeFileSync(path, '{"text":"a few words"}\n{"text":"and others"}\n');

afterAll(removeFolders);

const open = (cache: string): Promise<text.TextDataset> =>
  text.TextDataset.open({ files: path, tokenizer, length: 64, threads: 0, cache });

const contents = (dataset: text.TextDataset): number[][] =>
  Array.from({ length: dataset.length }, (_, i) => {
    const { ids, labels } = dataset.get(i);
    return [...ids, ...labels];
  });

test('a cache with a link, a pipe or wrong counts is ignored', async () => {
  const cache = join(folder, 'planted');
  const all = contents(await open(cache));
  const [name] = readdirSync(cache) as [string];
  const localText = join(cache, name);
  const good = readFileSync(localText);
  const again = async (): Promise<void> => {
    expect(contents(await open(cache))).toEqual(all);
    expect(readFileSync(localText).equals(good)).toBe(true);
    expect(readdirSync(cache)).toEqual([name]);
  };
  const target = join(folder, 'target');
  for (const content of ['mine', good]) {
    writeFileSync(target, content);
    rmSync(localText);
    symlinkSync(target, localText);
    await again();
    expect(readFileSync(target).equals(Buffer.from(content))).toBe(true);
    expect(lstatSync(localText).isFile()).toBe(true);
  }
  rmSync(localText);
  execFileSync('mkfifo', [localText]);
  await again();
  // Digests that fit, of counts that do not: row by row of the head, and a file that is cut.
  for (let word = 0; word < 7; ++word) {
    for (const wrong of [-1, 2 ** 31 - 1]) {
      const content = Buffer.from(good.subarray(32));
      content.writeInt32LE(wrong, 4 * word);
      const digest = createHash('sha256').update(content).digest();
      writeFileSync(localText, Buffer.concat([digest, content]));
      await again();
    }
  }
  for (const end of [0, 31, 40, good.length - 1, good.length - 4]) {
    const content = good.subarray(32, end);
    const digest = createHash('sha256').update(content).digest();
    writeFileSync(localText, Buffer.concat([digest, content]).subarray(0, end));
    await again();
  }
});

test('leftovers of killed writers are deleted after a day', async () => {
  const cache = join(folder, 'left');
  mkdirSync(cache);
  const id = '01234567-89ab-4cde-8f01-23456789abcd';
  const names = [`${'0'.repeat(32)}.tokens.${id}`, `${'1'.repeat(32)}.tokens.${id}`, `mine.${id}`];
  for (const name of names) writeFileSync(join(cache, name), 'half');
  const past = Date.now() / 1000 - 25 * 3600;
  for (const name of [names[0], names[2]]) utimesSync(join(cache, name as string), past, past);
  await open(cache);
  const left = readdirSync(cache);
  expect(left.filter((name) => !name.endsWith('.tokens')).sort()).toEqual(names.slice(1).sort());
  expect(left).toHaveLength(3);
});
