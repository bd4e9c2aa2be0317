// Tests the files of timed matrix algorithms: merging, limits, unreadable files, and removal.
import assert from 'node:assert/strict';
import {
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { forgetProducts } from '../../lib/launch/env.js';
import { addon } from '../../lib/runtime/addon.js';
import { cpu } from '../../lib/runtime/device.js';
import {
  algorithmFile,
  algorithmFiles,
  forgetAlgorithms,
  keepAlgorithms,
  readAlgorithms,
} from '../../lib/runtime/timed-algorithms.js';

let folder = '';
beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), 'ds-algorithms-'));
});
afterEach(() => rmSync(folder, { recursive: true, force: true }));

const line = (library: string, product: string, time: number): string =>
  `${library} ${product} beef ${time} 1\n`;

test('a new line replaces the line of the same library and product', () => {
  const file = algorithmFile('NVIDIA H200', join(folder, 'matmul'));
  assert.match(file, /matmul\/NVIDIA-H200\.txt$/);
  assert.equal(readAlgorithms(file), '');
  keepAlgorithms(file, line('1.1', 'aa', 3) + line('1.1', 'bb', 4));
  keepAlgorithms(file, line('1.2', 'aa', 5) + line('1.1', 'aa', 6));
  const expected = line('1.1', 'bb', 4) + line('1.2', 'aa', 5) + line('1.1', 'aa', 6);
  assert.equal(readFileSync(file, 'utf8'), expected);
  keepAlgorithms(file, '');
  assert.equal(readAlgorithms(file), expected);
  expect(readdirSync(join(folder, 'matmul'))).toEqual(['NVIDIA-H200.txt']);
});

test('the oldest lines leave a full file', () => {
  const file = algorithmFile('G', folder);
  const lines = Array.from({ length: 5000 }, (_, i) => line('1.1', `p${i}`, i));
  keepAlgorithms(file, lines.join(''));
  assert.equal(readAlgorithms(file), lines.slice(-4096).join(''));
});

test('a folder that cannot be written costs only the timing', () => {
  const blocked = join(folder, 'file');
  writeFileSync(blocked, '');
  keepAlgorithms(algorithmFile('G', blocked), line('1.1', 'aa', 1));
  assert.equal(readFileSync(blocked, 'utf8'), '');
  expect(algorithmFiles(blocked)).toEqual([]);
});

test('counts and removal by GPU model leave other files', () => {
  mkdirSync(join(folder, 'other'));
  keepAlgorithms(algorithmFile('A 1', folder), line('1.1', 'aa', 1) + line('1.1', 'bb', 1));
  keepAlgorithms(algorithmFile('B', folder), line('1.1', 'aa', 1));
  const held = [
    { gpu: 'A-1', products: 2 },
    { gpu: 'B', products: 1 },
  ];
  expect(algorithmFiles(folder)).toEqual(held);
  assert.equal(
    forgetProducts(folder),
    'forgot 2 timed products of A-1\nforgot 1 timed products of B',
  );
  expect(readdirSync(folder)).toEqual(['other']);
  expect(forgetAlgorithms(folder)).toEqual([]);
  assert.match(forgetProducts(folder), /^no timed products in /);
});

test('a device with fixed algorithms has none, and ignores lines', () => {
  const { number } = cpu();
  addon.learnAlgorithms(number, line('1.1', 'aa', 1));
  assert.equal(addon.timedAlgorithms(number), '');
});

test('other files in the folder are not read, counted or removed', () => {
  const [notes, target] = [join(folder, 'notes.txt'), join(folder, 'target')];
  writeFileSync(notes, 'buy milk\n');
  writeFileSync(target, line('1.1', 'aa', 1));
  symlinkSync(target, join(folder, 'B.txt'));
  assert.equal(readAlgorithms(join(folder, 'B.txt')), '');
  expect(forgetAlgorithms(folder)).toEqual([]);
  keepAlgorithms(join(folder, 'B.txt'), line('1.1', 'bb', 2));
  assert.equal(readFileSync(notes, 'utf8'), 'buy milk\n');
  assert.equal(readFileSync(target, 'utf8'), line('1.1', 'aa', 1));
});
