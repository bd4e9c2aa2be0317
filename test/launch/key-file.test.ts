// The file of API keys: a change while the server runs.
import { execFileSync } from 'node:child_process';
import { mkdtempSync, renameSync, rmSync, symlinkSync, unlinkSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { openKeyFile } from '../../lib/launch/key-file.js';

let dir: string;
let file: string;
let stop = (): void => {};
const printed: string[] = [];
const inherited = process.env.DS_API_KEY;

beforeEach(() => {
  delete process.env.DS_API_KEY;
  dir = mkdtempSync(join(tmpdir(), 'ds-keys-'));
  file = join(dir, 'keys');
  writeFileSync(file, 'one\n');
  printed.length = 0;
  for (const name of ['log', 'error'] as const) {
    jest.spyOn(console, name).mockImplementation((...line) => void printed.push(line.join(' ')));
  }
});
afterEach(() => {
  stop();
  jest.restoreAllMocks();
  rmSync(dir, { recursive: true });
  if (inherited !== undefined) process.env.DS_API_KEY = inherited;
});

/** Watches the file. Returns the lists of keys, one for each change. */
function watch(): (readonly string[])[] {
  const lists: (readonly string[])[] = [];
  const keyFile = openKeyFile(file);
  expect(keyFile.keys).toContain('one');
  stop = keyFile.watch((keys) => lists.push(keys), 10);
  return lists;
}

async function until(isDone: () => boolean): Promise<void> {
  const end = Date.now() + 20_000;
  while (!isDone() && Date.now() < end) await delay(10);
  expect(isDone()).toBe(true);
}

test('a written file, a replaced one, and the target of a link are read', async () => {
  const lists = watch();
  writeFileSync(file, 'two\nthree\n');
  await until(() => lists.at(-1)?.join() === 'two,three');
  expect(printed.at(-1)).toBe('--api-key-file: read again, 2 keys');

  writeFileSync(join(dir, 'next'), 'four\n');
  renameSync(join(dir, 'next'), file);
  await until(() => lists.at(-1)?.join() === 'four');

  writeFileSync(join(dir, 'secret'), 'five\n');
  symlinkSync(join(dir, 'secret'), join(dir, 'link'));
  renameSync(join(dir, 'link'), file);
  await until(() => lists.at(-1)?.join() === 'five');
  writeFileSync(join(dir, 'secret'), 'six-six\n');
  await until(() => lists.at(-1)?.join() === 'six-six');
});

test('the key of the environment stays', async () => {
  process.env.DS_API_KEY = 'mine';
  const lists = watch();
  writeFileSync(file, 'two\n');
  await until(() => lists.at(-1)?.join() === 'mine,two');
  delete process.env.DS_API_KEY;
});

test('an invalid file changes nothing, and the next valid one counts', async () => {
  const lists = watch();
  writeFileSync(file, 'two two\n');
  await until(() => printed.length === 1);
  expect(printed[0]).toMatch(/^ds serve: the former keys stay valid: .*line 1: expected a key/);
  expect(printed[0]).not.toContain('two two');
  writeFileSync(file, '');
  await until(() => printed.length === 2);
  expect(printed[1]).toMatch(/an empty file/);
  unlinkSync(file);
  await until(() => printed.length === 3);
  expect(printed[2]).toMatch(/a readable file/);
  expect(lists).toEqual([]);
  writeFileSync(file, 'three\n');
  await until(() => lists.at(-1)?.join() === 'three');
});

test('without a change, and after the end, nothing is read', async () => {
  const lists = watch();
  await delay(60);
  stop();
  writeFileSync(file, 'two\n');
  await delay(60);
  expect([lists, printed]).toEqual([[], []]);
});

test('a file that a program is still writing is read when it is complete', () => {
  jest.useFakeTimers();
  try {
    const lists = watch();
    writeFileSync(file, 'a-long');
    jest.advanceTimersByTime(10);
    writeFileSync(file, 'a-long-key\n');
    jest.advanceTimersByTime(10);
    expect(lists).toEqual([]);
    jest.advanceTimersByTime(10);
    expect(lists).toEqual([['a-long-key']]);
  } finally {
    jest.useRealTimers();
  }
});

test('a pipe in place of the file is refused without waiting for its writer', async () => {
  const lists = watch();
  unlinkSync(file);
  execFileSync('mkfifo', [file]);
  await until(() => printed.length === 1);
  expect(printed[0]).toMatch(/the former keys stay valid: .*expected a regular file/);
  unlinkSync(file);
  writeFileSync(file, 'two\n');
  await until(() => lists.at(-1)?.join() === 'two');
  expect(printed.at(-1)).toBe('--api-key-file: read again, 1 key');
});
