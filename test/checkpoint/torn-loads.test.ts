// A checkpoint or a folder of weights that is replaced while it is read: one state or the other, never parts of both.
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { checkpointLoads, folderLoads } from './torn-loads.js';

let dir: string;
beforeEach(() => {
  dir = mkdtempSync(join(tmpdir(), 'ds-torn-'));
});
afterEach(() => rmSync(dir, { recursive: true, force: true }));

test.each([
  ['a checkpoint', checkpointLoads],
  ['a folder of weights', folderLoads],
])('60 loads of %s beside a writer that replaces it', async (_name, loads) => {
  const { torn } = await loads(dir, 60);
  expect(torn).toEqual([]);
});
