// Tests atomic file writes: the state during a write, replaced files, and leftovers of killed
// writers.
import {
  chmodSync,
  lstatSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  statSync,
  symlinkSync,
  utimesSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { writeOwn, writeWhole } from '../../lib/runtime/whole-file.js';

let dir: string;
beforeEach(() => {
  dir = mkdtempSync(join(tmpdir(), 'whole-file-'));
});
afterEach(() => rmSync(dir, { recursive: true }));

const at = (name: string): string => join(dir, name);
const text = (name: string): string => readFileSync(at(name), 'utf8');

test('a complete file replaces the target of a link, with the permissions of the old one', () => {
  writeFileSync(at('real'), 'old');
  chmodSync(at('real'), 0o640);
  symlinkSync('real', at('link'));
  writeWhole(at('link'), (file) => {
    writeFileSync(file, 'new');
    expect(text('real')).toBe('old');
  });
  expect(text('real')).toBe('new');
  expect(statSync(at('real')).mode & 0o777).toBe(0o640);
  expect(readdirSync(dir)).toEqual(['link', 'real']);
});

test('a path that is no regular file is written to, not replaced', () => {
  writeWhole('/dev/null', (file) => writeFileSync(file, 'nothing'));
  expect(statSync('/dev/null').isCharacterDevice()).toBe(true);
  symlinkSync('nowhere', at('link'));
  writeWhole(at('link'), (file) => writeFileSync(file, 'new'));
  expect(lstatSync(at('link')).isSymbolicLink()).toBe(true);
  expect(text('nowhere')).toBe('new');
});

test('a failed write keeps the old file', () => {
  const fail = () => {
    throw new Error('no more');
  };
  expect(() => writeWhole(at('t'), fail)).toThrow('no more');
  expect(readdirSync(dir)).toEqual([]);
});

test('drafts that died a day ago are deleted in a folder of our own, and nothing else', () => {
  const id = '01234567-89ab-4cde-8f01-23456789abcd';
  const names = [`t.${id}`, `other.${id}`, `t.${id}.gz`, 't.1', id];
  for (const name of [...names, `t.${id.replace('0', 'f')}`]) writeFileSync(at(name), '');
  const past = Date.now() / 1000 - 25 * 3600;
  for (const name of names) utimesSync(at(name), past, past);
  const all = readdirSync(dir);
  writeWhole(at('t'), () => {}); // A folder with such a name may belong to the user.
  expect(readdirSync(dir).sort()).toEqual([...all, 't'].sort());
  writeOwn(
    at('t'),
    () => {},
    (name) => name === 't',
  );
  expect(readdirSync(dir).sort()).toEqual(
    [...names.slice(1), `t.${id.replace('0', 'f')}`, 't'].sort(),
  );
});

test('in a folder of our own a link or a pipe is replaced, not followed', () => {
  writeFileSync(at('real'), 'old');
  for (const target of ['real', 'nowhere']) {
    symlinkSync(target, at('t'));
    writeOwn(
      at('t'),
      (file) => writeFileSync(file, 'new'),
      () => false,
    );
    expect(lstatSync(at('t')).isFile()).toBe(true);
    expect([text('t'), text('real')]).toEqual(['new', 'old']);
    rmSync(at('t'));
  }
  expect(readdirSync(dir)).toEqual(['real']);
});
