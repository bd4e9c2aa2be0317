// A Trainer compares its first checkpoint with the disk before the first step.
import fs, { mkdtempSync, rmSync, statfsSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { refusal } from '../support/refusal.js';
import { destroyTrainers, tinyModel, tinyTrainer } from './tiny.js';

const dir = mkdtempSync(join(tmpdir(), 'ds-disk-'));
afterAll(() => rmSync(dir, { recursive: true }));
afterEach(async () => {
  jest.restoreAllMocks();
  await destroyTrainers();
});

/** Lets all disks have `bytes` free. */
function withFree(bytes: number): void {
  const real = statfsSync(tmpdir());
  const size = { ...real, bsize: 1, bfree: bytes, bavail: bytes };
  jest.spyOn(fs, 'statfsSync').mockImplementation((() => size) as never);
}

/** Weights, master weights and two moments, in f32. */
const ELEMENTS = tinyModel()
  .parameters()
  .reduce((sum, { bytes }) => sum + bytes / 4, 0);

test.each([
  ['a checkpoint', {}, 16],
  ['weights only', { weightsOnly: true }, 4],
])('%s that the disk cannot hold is refused at the first step', async (_name, more, each) => {
  const needed = each * ELEMENTS;
  withFree(needed - 1);
  const save = { dir: join(dir, `new-${each}`), every: 3, ...more };
  const trainer = tinyTrainer({ save });
  const steps = jest.fn();
  trainer.on('step', steps);
  const error = await refusal(() => trainer.train());
  expect(error).toMatchObject({ code: 'DS_IO', op: `write to ${save.dir}` });
  const kib = (needed / 2 ** 20).toFixed(1);
  expect([error.expected, error.got]).toEqual([`${kib} MiB of disk`, `${kib} MiB free`]);
  expect(error.hint).toContain('choose another folder');
  expect(steps).not.toHaveBeenCalled();
});

test('a disk that holds one checkpoint is enough to begin', async () => {
  withFree(2 * 16 * ELEMENTS + 2 ** 20);
  const trainer = tinyTrainer({ save: { dir: join(dir, 'enough'), every: 3 } });
  await expect(trainer.train()).resolves.toMatchObject({ reason: 'done' });
});
