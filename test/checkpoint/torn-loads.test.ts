// A checkpoint or a folder of weights that is replaced while it is read: one state or the other,
// never parts of both.
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { limit, times } from '../support/times.js';
import { checkpointLoads, folderLoads } from './torn-loads.js';

const LOADS = times(60, 3000);

let dir: string;
beforeEach(() => {
  dir = mkdtempSync(join(tmpdir(), 'ds-torn-'));
});
afterEach(() => rmSync(dir, { recursive: true, force: true }));

test.each([
  ['a checkpoint', checkpointLoads],
  ['a folder of weights', folderLoads],
])(
  `${LOADS} loads of %s beside a writer that replaces it: none torn`,
  async (_name, loads) => {
    const { torn } = await loads(dir, LOADS);
    expect(torn).toEqual([]);
  },
  limit(LOADS, 1000),
);
