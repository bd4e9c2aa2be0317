// Several processes download one model, and SIGKILL ends some at random points.
import { type ChildProcess, spawn } from 'node:child_process';
import { readdirSync, readFileSync, rmSync } from 'node:fs';
import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';

import { pullWith } from '../../lib/hub/pull.js';
import { hubTest, NAME, noise, tiny } from './hub-support.js';

const hub = hubTest();
const HOOK = join(__dirname, '..', 'support', 'run-typescript.cjs');
const PROGRAM = join(__dirname, 'pull-process.ts');
const WEIGHTS = noise(1_000_000);

interface Child {
  process: ChildProcess;
  ended: Promise<{ code: number | null; out: string }>;
}

function start(): Child {
  const env = {
    ...process.env,
    HF_ENDPOINT: hub.server.url,
    HF_HOME: hub.cache,
    HF_HUB_CACHE: hub.cache,
    HF_HUB_OFFLINE: '0',
    HF_HUB_DISABLE_PROGRESS_BARS: '1',
  };
  const child = spawn(process.execPath, ['-r', HOOK, PROGRAM, NAME], { env });
  let out = '';
  for (const stream of [child.stdout, child.stderr]) {
    stream.on('data', (part: Buffer) => {
      out += part;
    });
  }
  const ended = new Promise<{ code: number | null; out: string }>((resolve, reject) => {
    child.on('error', reject);
    child.on('close', (code) => resolve({ code, out }));
  });
  return { process: child, ended };
}

const blobs = (): string => join(hub.cache, 'models--org--tiny', 'blobs');

test('8 concurrent processes make one download', async () => {
  hub.server.add(NAME, tiny(WEIGHTS));
  hub.server.chunk = 20_000;
  const children = Array.from({ length: 8 }, start);
  const ends = await Promise.all(children.map(({ ended }) => ended));
  const folders = new Set(ends.map(({ out }) => out.trim()));
  expect(ends.map(({ code }) => code)).toEqual(Array(8).fill(0));
  expect(folders.size).toBe(1);
  const [folder = ''] = folders;
  expect(readFileSync(join(folder, 'model.safetensors')).equals(WEIGHTS)).toBe(true);
  // Five ranges of the weights, each once.
  const ranges = hub.server.fileRequests('model.safetensors').map(({ range }) => range);
  expect(ranges).toHaveLength(5);
  expect(new Set(ranges).size).toBe(5);
  expect(hub.server.fileRequests('/config.json')).toHaveLength(1);
});

test('after a kill at 20 random points, the next call resumes and leaves no partial files', async () => {
  hub.server.add(NAME, tiny(WEIGHTS));
  hub.server.chunk = 1500;
  let seed = 11;
  let kills = 0;
  for (let i = 0; i < 100 && kills < 20; ++i) {
    const { process: child, ended } = start();
    seed = (seed * 48_271) % 2_147_483_647;
    const before = hub.server.received.length;
    const deadline = Date.now() + 30_000;
    while (hub.server.received.length === before && Date.now() < deadline) await delay(2);
    await delay(seed % 300);
    child.kill('SIGKILL');
    const isKilled = (await ended).code === null;
    if (isKilled) kills += 1;
    // Every file under a final name is whole.
    const names = await Promise.resolve()
      .then(() => readdirSync(blobs()))
      .catch(() => []);
    for (const name of names.filter((name) => /^[0-9a-f]{64}$/.test(name))) {
      expect(readFileSync(join(blobs(), name)).equals(WEIGHTS)).toBe(true);
    }
    // A process that has ended first gets an empty cache as its successor.
    if (!isKilled) rmSync(join(hub.cache, 'models--org--tiny'), { recursive: true });
  }
  expect(kills).toBe(20);
  const folder = await pullWith(hub.settings({ segmentBytes: 200_000 }), NAME, {});
  expect(readFileSync(join(folder, 'model.safetensors')).equals(WEIGHTS)).toBe(true);
  expect(readdirSync(blobs()).filter((name) => name.includes('.incomplete'))).toEqual([]);
});

test('memory stays bounded while a file streams to the disk', async () => {
  hub.server.add(NAME, tiny(noise(40_000_000)));
  await pullWith(hub.settings({ segmentBytes: 8_000_000 }), NAME, { files: 'config' });
  globalThis.gc?.();
  const before = process.memoryUsage().arrayBuffers;
  let maxRunning = 0;
  let turns = 0;
  const timer = setInterval(() => {
    turns += 1;
    maxRunning = Math.max(maxRunning, process.memoryUsage().arrayBuffers - before);
  }, 1);
  await pullWith(hub.settings({ segmentBytes: 8_000_000 }), NAME, {});
  clearInterval(timer);
  expect(turns).toBeGreaterThan(5);
  // The server of this process also holds unsent bytes.
  expect(maxRunning).toBeLessThan(80_000_000);
});
