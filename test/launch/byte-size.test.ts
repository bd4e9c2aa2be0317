// Sizes on the command line.
import { formatBytes, parseBytes } from '../../lib/launch/byte-size.js';

test.each<[string, number | null]>([
  ['5GB', 5e9],
  ['2GiB', 2 ** 31],
  ['1.5 mb', 1.5e6],
  ['1.25 MB', 1.25e6],
  ['0.5KiB', 512],
  ['17', 17],
  [' 3 B ', 3],
  ['0', null],
  ['-1GB', null],
  ['1XB', null],
  ['GB', null],
  ['x5GB', null],
  ['5GB!', null],
  ['1e9', null],
  ['', null],
  ['9999999TB', null],
])('%j is %p bytes', (text, bytes) => {
  expect(parseBytes(text)).toBe(bytes);
});

test('bytes are formatted with a unit, rounded', () => {
  expect([12, 1500, 2.25e9].map(formatBytes)).toEqual(['12 B', '1.5 KB', '2.3 GB']);
});
