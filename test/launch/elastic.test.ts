// Tests the output and the errors of `ds elastic`.
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { describeElasticity } from '../../lib/launch/elastic.js';

let folder: string;
beforeAll(() => {
  folder = mkdtempSync(join(tmpdir(), 'ds-elastic-'));
});
afterAll(() => rmSync(folder, { recursive: true }));

function file(section: object, more: object = {}): string {
  const path = join(folder, 'ds_config.json');
  writeFileSync(path, JSON.stringify({ ...more, elasticity: section }));
  return path;
}

const SECTION = { max_train_batch_size: 24, micro_batch_sizes: [2, 3], max_gpus: 6, version: 0.1 };

test('ds elastic prints the batch and its world sizes, whatever else the file contains', () => {
  const path = file(SECTION, { train_batch_size: 5, optimizer: { type: 'none of ours' } });
  expect(describeElasticity(path, {})).toBe(
    'train_batch_size 24\nfor 1, 2, 3, 4, 6 data ranks (5 choices)',
  );
});

test('ds elastic prints the batch sizes of a number of ranks', () => {
  const lines = describeElasticity(file({ ...SECTION, version: 0.2 }), { worldSize: 5 }).split(
    '\n',
  );
  expect(lines.slice(2)).toEqual([
    'other numbers of data ranks get another batch size',
    '5 data ranks: train_batch_size 20, train_micro_batch_size_per_gpu 2, gradient_accumulation_steps 2',
  ]);
});

test('ds elastic --json prints JSON', () => {
  expect(JSON.parse(describeElasticity(file(SECTION), { worldSize: 4, json: true }))).toEqual({
    train_batch_size: 24,
    data_ranks: [1, 2, 3, 4, 6],
    for: {
      data_ranks: 4,
      train_batch_size: 24,
      train_micro_batch_size_per_gpu: 3,
      gradient_accumulation_steps: 2,
    },
  });
});

test.each<[object | null, object, RegExp]>([
  [null, {}, /ds_config.json: elasticity: expected a section .*got none/],
  [{ micro_batch_sizes: [2] }, {}, /ds_config.json: elasticity.max_train_batch_size: .*got none/],
  [{ ...SECTION, min_gpus: 'few' }, {}, /elasticity.min_gpus: .*"few"/],
  [SECTION, { worldSize: 5 }, /elasticity: expected a number of data ranks .*1, 2, 3, 4, 6, got 5/],
])('%j with %j is refused', (section, flags, message) => {
  expect(() => describeElasticity(file(section as object), flags)).toThrow(message);
});
