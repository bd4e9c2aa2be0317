// The seed of requests without their own seed.
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { openEngine } from '../../lib/serve/index.js';
import { seed } from '../../lib/tensor/index.js';
import { tinyLlama } from '../peft/models.js';

const folder = mkdtempSync(join(tmpdir(), 'ds-seeds-'));
afterAll(() => rmSync(folder, { recursive: true }));

/** The first answer of a process that starts with `options`. */
async function sampleWith(options: { seed?: number }): Promise<readonly number[] | undefined> {
  seed(0); // As a process does.
  const config = { device: 'cpu' };
  const engine = await openEngine(folder, { config, ...options });
  const [one] = await engine.generate({ prompt: [3, 1, 4], ignoreEos: true });
  await engine.destroy();
  return one?.tokens;
}

test('each process that opens an engine draws other tokens, unless it is given a seed', async () => {
  await tinyLlama().save(folder);
  expect(await sampleWith({})).not.toEqual(await sampleWith({}));
  expect(await sampleWith({ seed: 7 })).toEqual(await sampleWith({ seed: 7 }));
});
