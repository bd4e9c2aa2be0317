// Rows of files from other programs: long lines, any borders of parts, and damaged rows.
import fs, { closeSync, ftruncateSync, openSync, writeFileSync, writeSync } from 'node:fs';
import { join } from 'node:path';

import { divideFiles, type FilePart } from '../../lib/text/row-files.js';
import { readRows } from '../../lib/text/row-reader.js';
import { emptyFolder, expectRejection, removeFolders } from './folders.js';

const folder = emptyFolder();
afterAll(removeFolders);

async function read(parts: readonly FilePart[]): Promise<unknown[]> {
  const rows: unknown[] = [];
  for (const part of parts) for await (const { row } of readRows(part)) rows.push(row);
  return rows;
}

const part = (path: string, start: number, end: number): FilePart => ({
  path,
  format: 'jsonl',
  start,
  end,
  digest: '',
});

test('relative paths refer to the working directory of the open', async () => {
  const working = process.cwd();
  writeFileSync(join(folder, 'near.jsonl'), '{"text":"a"}\n');
  try {
    process.chdir(folder);
    const parts = await divideFiles(['near.jsonl'], false);
    process.chdir(working);
    expect(await read(parts)).toEqual([{ text: 'a' }]);
  } finally {
    process.chdir(working);
  }
});

test('a line longer than the parts of its file is read once, and copied once', async () => {
  const path = join(folder, 'long.jsonl');
  const size = 40 << 20;
  writeFileSync(path, `{"text":"${'a'.repeat(size)}"}\n{"text":"b"}\n`);
  const parts = await divideFiles([path], false);
  let copied = 0;
  const concat = jest.spyOn(Buffer, 'concat').mockImplementation((list) => {
    const fullBytes = Buffer.allocUnsafe(list.reduce((sum, { length }) => sum + length, 0));
    copied += fullBytes.length;
    let at = 0;
    for (const bytes of list) {
      fullBytes.set(bytes, at);
      at += bytes.length;
    }
    return fullBytes;
  });
  const reads = jest.spyOn(fs, 'readSync');
  try {
    const [first, second, ...others] = (await read(parts)) as { text: string }[];
    expect(first?.text.length).toBe(size);
    expect([second?.text, others.length]).toEqual(['b', 0]);
    const bytes = reads.mock.results.reduce((sum, { value }) => sum + (value as number), 0);
    expect(bytes).toBeLessThan(3 * size);
    expect(copied).toBeLessThan(2 * size);
  } finally {
    concat.mockRestore();
    reads.mockRestore();
  }
});

test('each row is in exactly one part, for any boundaries', async () => {
  const path = join(folder, 'borders.jsonl');
  const lines = ['{"a":1}', '', '{"a":2}\r', '   ', '{"a":3}', '', '', '{"a":"ü"}', '{"a":5}'];
  for (const text of [lines.join('\n'), `${lines.join('\n')}\n`, `\n\n${lines.join('\n')}\n\n`]) {
    writeFileSync(path, text);
    const size = Buffer.byteLength(text);
    const rows = [1, 2, 3, 'ü', 5].map((a) => ({ a }));
    for (let i = 0; i <= size; ++i) {
      for (let j = i; j <= size; j += 3) {
        const parts = [part(path, 0, i), part(path, i, j), part(path, j, size)];
        expect(await read(parts)).toEqual(rows);
      }
    }
  }
});

test('the error of an invalid row names its line, also after a long file', async () => {
  const path = join(folder, 'sparse.jsonl');
  const file = openSync(path, 'w');
  const place = 8 * 2 ** 20;
  ftruncateSync(file, place);
  writeSync(file, '\n\n{bad\n', place);
  closeSync(file);
  const allocated = jest.spyOn(fs, 'readFileSync');
  try {
    const rows = () => read([part(path, place + 1, place + 7)]);
    await expectRejection(rows, 'DS_DATA', /sparse\.jsonl:3: expected a JSON object/);
    expect(allocated).not.toHaveBeenCalled();
  } finally {
    allocated.mockRestore();
  }
});

test('the error of a text longer than the longest string', async () => {
  const path = join(folder, 'huge.txt');
  writeFileSync(path, 'of more than 512 MiB');
  const cause = Object.assign(new Error('too long'), { code: 'ERR_STRING_TOO_LONG' });
  const decode = jest.spyOn(TextDecoder.prototype, 'decode').mockImplementation(() => {
    throw cause;
  });
  const rows = async () => read(await divideFiles([path], false));
  await expectRejection(rows, 'DS_DATA', /huge\.txt: expected a string of at most \d+ characters/);
  decode.mockRestore();
});
