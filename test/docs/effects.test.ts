// Reading a file has no effects, as docs/architecture.md promises.
import { readdirSync } from 'node:fs';
import { join } from 'node:path';
import { getRandomState } from '../../lib/tensor/random.js';

const lib = join(__dirname, '../../lib');
/** Programs and threads, which begin when they are read. */
const BEGIN =
  /-thread\.ts$|^data\/worker(-supervisor)?\.ts$|^launch\/(cli|serve-rank)\.ts$|\/main\.ts$/;

test('reading a file draws no random numbers', () => {
  const files = readdirSync(lib, { recursive: true, encoding: 'utf8' });
  const modules = files.filter((file) => /(?<!\.d)\.ts$/.test(file) && !BEGIN.test(file));
  expect(modules.length).toBeGreaterThan(700);
  const before = getRandomState();
  for (const file of modules) require(join(lib, file));
  expect(getRandomState()).toEqual(before);
});
