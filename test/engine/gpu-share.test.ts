// What ranks remember of their processors: the first one writes it, whole or not at all.
import { mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { ratesOf } from '../../lib/engine/setup/gpu-share.js';

let folder: string;
let file: string;
beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), 'ds-rates-'));
  file = join(folder, 'below', 'rates.json');
});
afterEach(() => rmSync(folder, { recursive: true, force: true }));

const rates = (host: number) => ({ host, link: 1 });

/** What a rank gets, where the first one says `first` or what this one knows. */
function asRank(rank: number, first?: boolean) {
  const measure = jest.fn(() => rates(1 + rank));
  const agree = (own: boolean) => first ?? own;
  const got = ratesOf('host', { isFirst: rank === 0, agree, measure, file });
  return { got, measured: measure.mock.calls.length };
}

test('all ranks measure beside each other, and the first one writes', () => {
  expect(asRank(1, false)).toEqual({ got: rates(2), measured: 1 });
  expect(readdirSync(folder)).toEqual([]);
  expect(asRank(0)).toEqual({ got: rates(1), measured: 1 });
  expect(JSON.parse(readFileSync(file, 'utf8'))).toEqual({ host: rates(1) });
  expect(asRank(0)).toEqual({ got: rates(1), measured: 0 });
  expect(asRank(1, true)).toEqual({ got: rates(1), measured: 0 });
});

test('what the first rank knows or does not counts on all', () => {
  expect(asRank(1, true)).toEqual({ got: null, measured: 0 });
  asRank(0);
  expect(asRank(1, false)).toEqual({ got: rates(2), measured: 1 });
  expect(JSON.parse(readFileSync(file, 'utf8'))).toEqual({ host: rates(1) });
});

test('a file that cannot be written leaves nothing beside it', () => {
  mkdirSync(file, { recursive: true });
  writeFileSync(join(file, 'mine'), '');
  expect(asRank(0)).toEqual({ got: rates(1), measured: 1 });
  expect(readdirSync(join(folder, 'below'))).toEqual(['rates.json']);
});
