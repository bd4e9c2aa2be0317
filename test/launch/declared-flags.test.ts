// Declared options on a command line: lists, sizes, repeated options, conflicts and errors.
import { Command } from 'commander';
import { addGroups, type Groups, readFlags } from '../../lib/launch/declared-flags.js';
import {
  boolean,
  declareOption,
  integer,
  integers,
  string,
  texts,
} from '../../lib/runtime/option.js';

const GROUPS = {
  'First:': {
    name: string('a name', { required: true, flag: '--name <text>' }),
    files: texts('files', { flag: '--file <path>' }),
    depths: integers('depths', { min: 1, default: [8, 32], shown: '8,32', flag: '--depth <list>' }),
    sizes: integers('sizes', { min: 1, flag: '--sizes <list>', syntax: 'sizes' }),
  },
  'Second:': {
    bytes: integer('bytes', { min: 1, default: 5, flag: '--bytes <size>', syntax: 'bytes' }),
    rank: declareOption((_, value: number | true) => value, 'a rank', {
      flag: '--rank [r]',
      syntax: 'integer or switch',
    }),
    alone: boolean('alone', { flag: '--alone', conflicts: ['bytes'] }),
  },
};

function read(words: string, groups: Groups = GROUPS) {
  const command = addGroups(new Command('ds'), groups).exitOverride();
  command.configureOutput({ writeErr: () => {} }).parse(words.split(' '), { from: 'user' });
  return readFlags(groups, command.opts());
}

test('absent options have their defaults, or no member', () => {
  expect(read('--name a')).toEqual({ name: 'a', depths: [8, 32], bytes: 5 });
});

test('lists are joined by commas, and texts are repeated', () => {
  const words = '--name a --file x --file y --depth 1,2 --sizes 4MiB,5KB --bytes 2GiB --rank 16';
  expect(read(words)).toEqual({
    name: 'a',
    files: ['x', 'y'],
    depths: [1, 2],
    sizes: [2 ** 22, 5000],
    bytes: 2 ** 31,
    rank: 16,
  });
  expect(read('--name a --rank')).toMatchObject({ rank: true });
});

test.each([
  ['', "required option '--name <text>' not specified"],
  ['--name a --depth 1,x', 'Expected an integer of at least 1.'],
  ['--name a --depth 0', 'Expected an integer of at least 1.'],
  ['--name a --sizes 4MiB,x', 'Expected bytes, such as 5GB, 500MB or 2GiB.'],
  ['--name a --alone --bytes 7', "'--alone' cannot be used with option '--bytes <size>'"],
])('ds %s is refused', (words, message) => {
  expect(() => read(words)).toThrow(message);
});

test('the help has headings, defaults and required options', () => {
  const help = addGroups(new Command('ds'), GROUPS).helpInformation();
  expect(help).toContain('a name (required)');
  expect(help).toContain('depths (default: 8,32)');
  expect(help.indexOf('First:')).toBeLessThan(help.indexOf('Second:'));
});
