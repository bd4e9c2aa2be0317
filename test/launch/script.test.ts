// Tests how a TypeScript program starts on each version of Node.
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { pathToFileURL } from 'node:url';

import { createNodeArguments } from '../../lib/launch/script.js';

const FLAG = '--experimental-strip-types';
const folder = mkdtempSync(join(tmpdir(), 'ds-script-'));
afterAll(() => rmSync(folder, { recursive: true }));
const { features: inherited, allowedNodeEnvironmentFlags: allowed } = process;
afterEach(() => {
  Object.defineProperty(process, 'features', { value: inherited });
  Object.defineProperty(process, 'allowedNodeEnvironmentFlags', { value: allowed });
});

function write(path: string): string {
  const file = join(folder, path);
  mkdirSync(dirname(file), { recursive: true });
  writeFileSync(file, '');
  return file;
}

const argumentsOf = (name: string) =>
  createNodeArguments({ name, args: [], module: false, localRankArgument: false });

/** As a version of Node that understands TypeScript itself, with a flag, or not at all. */
function nodeWith(support: 'strip' | 'flag' | 'none'): void {
  const typescript = support === 'strip' ? 'strip' : false;
  Object.defineProperty(process, 'features', { value: { ...inherited, typescript } });
  const flags = new Set(support === 'flag' ? [FLAG] : []);
  Object.defineProperty(process, 'allowedNodeEnvironmentFlags', { value: flags });
}

test.each(['main.ts', 'main.mts', 'main.cts'])('%s gets the arguments that Node needs', (name) => {
  const file = write(name);
  nodeWith('strip');
  expect(argumentsOf(file)).toEqual([file]);
  nodeWith('flag');
  expect(argumentsOf(file)).toEqual([FLAG, file]);
});

test('JavaScript needs no argument', () => {
  const file = write('main.js');
  nodeWith('none');
  expect(argumentsOf(file)).toEqual([file]);
});

test('without TypeScript support the loader of the project is used, or an error lists the options', () => {
  nodeWith('none');
  const alone = write('alone/main.ts');
  expect(() => argumentsOf(alone)).toThrow(
    /main\.ts: expected a Node version or a loader that runs TypeScript, got Node .* alone.*install tsx/,
  );
  const loader = write('own/node_modules/tsx/index.js');
  const file = write('own/main.ts');
  expect(argumentsOf(file)).toEqual(['--import', pathToFileURL(loader).href, file]);
});
