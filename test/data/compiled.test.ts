// Tests the compiled loader in plain Node (built by `npm run build:test`): threads start without a
// hook, load ES modules, and end with an unreachable loader.
import { spawnSync } from 'node:child_process';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { packageRoot } from '../../lib/runtime/package-root.js';

const DATA = join(packageRoot(), 'build', 'js', 'lib', 'data', 'index.js');

let dir: string;
beforeEach(() => {
  dir = mkdtempSync(join(tmpdir(), 'ds-compiled-'));
});
afterEach(() => rmSync(dir, { recursive: true }));

function run(script: string): string {
  const head = `const { DataLoader, TokenDataset, workerDataset } = require(${JSON.stringify(DATA)});
    const { readdirSync } = require('node:fs');
    const threads = () => readdirSync('/proc/self/task').length;`;
  const args = ['--expose-gc', '-e', `${head}\n(async () => {${script}})()`];
  const { stdout, stderr, status } = spawnSync(process.execPath, args, {
    encoding: 'utf8',
    timeout: 300_000,
  });
  expect({ stderr, status }).toEqual({ stderr: '', status: 0 });
  return stdout;
}

test.each([
  ['mjs', 'export const build = async (n) => ({ length: n, get: (i) => i * i });'],
  ['cjs', 'exports.build = (n) => ({ length: n, get: (i) => i * i });'],
])('a dataset in a .%s module, synchronously', (extension, text) => {
  const module = join(dir, `squares.${extension}`);
  writeFileSync(module, text);
  const out = run(`
    const data = workerDataset({ module: ${JSON.stringify(module)}, export: 'build', args: [6], length: 6 });
    const loader = new DataLoader(data, { numWorkers: 2, batchSize: 4, shuffle: false });
    for (const batch of loader) console.log(batch.toArray().join(' '));`);
  expect(out).toBe('0 1 4 9\n16 25\n');
});

test('threads of a loader that was forgotten in mid-iteration end', () => {
  const out = run(`
    const before = threads();
    (function forget() {
      const data = new TokenDataset(Int32Array.from({ length: 1000 }, (_, i) => i), 4);
      const loader = new DataLoader(data, { numWorkers: 2 });
      loader[Symbol.iterator]().next();
    })();
    const during = threads();
    for (let i = 0; i < 10_000 && threads() > before; ++i) {
      gc();
      await new Promise((resolve) => setTimeout(resolve, 10));
    }
    console.log(during >= before + 3, threads() <= before);`);
  expect(out).toBe('true true\n');
});
