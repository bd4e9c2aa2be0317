// Tests folder creation by a blocking call: it ends on every file system, and with concurrent
// creators.
import { execFileSync } from 'node:child_process';
import fs, { mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { CsvMonitor, TensorBoardMonitor } from '../../lib/monitor/index.js';
import { makeFolderNow } from '../../lib/runtime/make-folder.js';
import { packageRoot } from '../../lib/runtime/package-root.js';

let dir: string;
beforeEach(() => {
  dir = mkdtempSync(join(tmpdir(), 'ds-folder-'));
});
afterEach(() => rmSync(dir, { recursive: true }));

test('creates a folder and its parents, also existing ones', () => {
  for (const path of [join(dir, 'a', 'b', 'c'), join(dir, 'a', 'b'), dir, '.', '/']) {
    makeFolderNow(path);
    makeFolderNow(path);
  }
  expect(readdirSync(join(dir, 'a', 'b'))).toEqual(['c']);
});

test('several processes create folders below the same folder at once', () => {
  const path = join(dir, 'a', 'b');
  const made = fs.mkdirSync;
  const other = jest.spyOn(fs, 'mkdirSync').mockImplementationOnce((first) => {
    made(join(dir, 'a')); // Created right after the check.
    throw Object.assign(new Error(`ENOENT: ${first}`), { code: 'ENOENT' });
  });
  makeFolderNow(path);
  other.mockRestore();
  expect(readdirSync(join(dir, 'a'))).toEqual(['b']);
});

test.each(['taken', join('taken', 'below'), ''])(
  'a folder that cannot be created is an error: %j',
  (path) => {
    writeFileSync(join(dir, 'taken'), '');
    const error = /^(EEXIST|ENOTDIR|ENOENT): .*mkdir/;
    expect(() => makeFolderNow(path && join(dir, path))).toThrow(error);
  },
);

// In a child process, because an endless loop would block this one.
test('a folder that refuses new folders with ENOENT is an error as well', () => {
  const program = `
    const { makeFolderNow } = require(process.argv[1]);
    try { makeFolderNow('/proc/ds/runs'); } catch ({ code }) { console.log(code); }`;
  const preload = join(packageRoot(), 'test', 'support', 'run-typescript.cjs');
  const source = join(packageRoot(), 'lib', 'runtime', 'make-folder.ts');
  const words = ['-r', preload, '-e', program, source];
  const output = execFileSync(process.execPath, words, { encoding: 'utf8', timeout: 300_000 });
  expect(output).toBe('ENOENT\n');
  const at = { outputPath: '/proc/ds', jobName: 'job' };
  for (const make of [() => new CsvMonitor(at), () => new TensorBoardMonitor(at)]) {
    expect(make).toThrow(expect.objectContaining({ code: 'DS_IO', op: '/proc/ds/job' }));
  }
});

test('no source calls the recursive mkdir of Node', () => {
  const root = join(packageRoot(), 'lib');
  const sources = readdirSync(root, { recursive: true, encoding: 'utf8' });
  const found = sources.filter((name) => {
    if (!name.endsWith('.ts')) return false;
    return /mkdir(Sync)?\([^;]*recursive: true/.test(readFileSync(join(root, name), 'utf8'));
  });
  expect(found).toEqual([]);
});
