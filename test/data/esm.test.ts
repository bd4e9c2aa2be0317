// Datasets of ES modules by URL: in worker threads, and imported by the calling thread.
import { execFileSync } from 'node:child_process';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { DataLoader, workerDataset } from '../../lib/data/index.js';
import { DsError } from '../../lib/errors.js';

const url = pathToFileURL(join(__dirname, 'esm-datasets.mjs'));
const hook = join(__dirname, '../support/run-typescript.cjs');
const collate = (samples: number[]): number[] => samples;

test.each([url, url.href])('worker threads import %p', async (module) => {
  const dataset = workerDataset<number>({ module, args: [5], length: 5 });
  await using loader = new DataLoader(dataset, {
    batchSize: 2,
    shuffle: false,
    collate,
    numWorkers: 2,
    workerThread: { execArgv: ['-r', hook] },
  });
  const batches: number[][] = [];
  for await (const batch of loader) batches.push(batch);
  expect(batches).toEqual([[100, 101], [102, 103], [104]]);
});

// In a process of its own: jest cannot import.
test('the calling thread imports ES modules, and reports a missing length', () => {
  const program = `
    const { DataLoader, workerDataset } = require(${JSON.stringify(join(__dirname, '../../lib/data/index.ts'))});
    const module = new URL(${JSON.stringify(url.href)});
    const dataset = workerDataset({ module, args: [3], length: 3 });
    const collate = (samples) => samples;
    void (async () => {
      const options = { batchSize: 2, shuffle: false, collate };
      for await (const batch of new DataLoader(dataset, options)) console.log(batch.join());
      try { workerDataset({ module, args: [3] }).length } catch (error) { console.log(error.message) }
    })();
  `;
  const out = execFileSync(process.execPath, ['-r', hook, '-e', program], { encoding: 'utf8' });
  expect(out).toMatch(/^100,101\n102\ndataset of .*esm-datasets\.mjs: .*`length`/);
});

test.each(['./pictures.mjs', 'https://example.org/a.mjs', 3])('%p is no module', (module) => {
  const make = () => workerDataset({ module: module as string, length: 1 });
  expect(make).toThrow(DsError);
  expect(make).toThrow(/import\.meta\.url/);
});
