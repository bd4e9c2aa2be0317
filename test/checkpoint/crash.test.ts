// Saves of two processes that die at random moments, or run out of disk: always the old checkpoint
// or the new one.
import { type ChildProcess, spawn } from 'node:child_process';
import { mkdtempSync, readdirSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { Checkpoint } from '../../lib/checkpoint/index.js';
import { cpu } from '../../lib/runtime/device.js';
import { StoreServer } from '../../lib/runtime/job.js';
import { Tensor } from '../../lib/tensor/tensor.js';
import { random } from '../support/random.js';
import { limit, times } from '../support/times.js';
import { content, save, valuesOf } from './content.js';
import type { SaveJob } from './save-process.js';

const HOOK = join(__dirname, '..', 'support', 'run-typescript.cjs');
const SAVER = join(__dirname, 'save-process.ts');
const RANKS = [0, 1];
const KILOBYTES = 768;
const TENSORS = [
  ['model', 'a'],
  ['optimizer', 'a.fp32'],
  ['optimizer', 'a.exp_avg'],
] as const;

let dir: string;
let server: StoreServer;
let children: ChildProcess[];
beforeEach(() => {
  dir = mkdtempSync(join(tmpdir(), 'ds-crash-'));
});
afterEach(() => rmSync(dir, { recursive: true, force: true }));

/** Starts two ranks that save checkpoints first, first + 1, ... */
function start(tag: string | null, first: number, limit = 'unlimited'): Promise<number | null>[] {
  const at = { host: '127.0.0.1', secret: 'of this test' };
  server = new StoreServer({ ...at, port: 0 });
  const store = { ...at, port: server.port };
  children = RANKS.map((rank) => {
    const job: SaveJob = { store, rank, size: 2, dir, tag, kilobytes: KILOBYTES, first };
    const command = `ulimit -f ${limit}; exec "$0" -r "$1" "$2" "$3"`;
    const args = ['-c', command, process.execPath, HOOK, SAVER, JSON.stringify(job)];
    return spawn('bash', args, { env: { ...process.env, DS_NUM_THREADS: '1' } });
  });
  return children.map((child) => new Promise((resolve) => child.once('close', resolve)));
}

const pause = (ms: number) => new Promise((resolve) => setTimeout(resolve, ms));

/**
 * Waits for the first checkpoint, then kills one rank `delay` milliseconds later, and soon the
 * other.
 */
async function killDuringSaves(tag: string | null, first: number): Promise<void> {
  const ends = start(tag, first);
  await new Promise((resolve) => children[0]?.stdout?.once('data', resolve));
  await pause(random() * 40);
  const victim = Math.floor(random() * 2);
  children[victim]?.kill('SIGKILL');
  await pause(random() < 0.5 ? 0 : random() * 10);
  children[1 - victim]?.kill('SIGKILL');
  await Promise.all(ends);
  server.stop();
}

/** Opens the latest checkpoint and checks that it is of one piece. Returns its number. */
async function requireWhole(tag?: string): Promise<number> {
  const checkpoint = await Checkpoint.open(dir, tag);
  const { state, ranks } = checkpoint;
  expect(ranks).toEqual([{ n: state.n }, { n: state.n }]);
  const values = Tensor.empty([KILOBYTES * 256], 'f32', cpu());
  for (const [section, name] of TENSORS) {
    await checkpoint.readInto(section, name, values);
    const others = (values.toRaw() as Float32Array).filter((value) => value !== state.n);
    expect(others).toHaveLength(0);
  }
  values.dispose();
  return state.n as number;
}

const visible = () => readdirSync(dir).filter((name) => !name.startsWith('.') && name !== 'latest');

const KILLS = times(6, 60);

test.each([['again'], [null]])(
  `kill -9 of two ranks that save tag %j, at ${KILLS} random moments: none incomplete, none lost`,
  async (tag) => {
    let last = 0;
    for (let round = 0; round < KILLS; ++round) {
      await killDuringSaves(tag, last);
      const n = await requireWhole();
      expect(n).toBeGreaterThanOrEqual(last);
      for (const one of visible()) await requireWhole(one);
      last = n;
    }
    await save(dir, 'end', content(1));
    expect(readdirSync(dir).filter((name) => name.startsWith('.'))).toEqual([]);
    expect(visible().length).toBeLessThanOrEqual(4);
  },
  limit(KILLS, 10_000),
);

test('a disk that is full fails both ranks, and leaves the old checkpoint and nothing else', async () => {
  await save(dir, 'again', content(7));
  // A limit of 128 KiB per file stands for the full disk: the write fails halfway.
  const ends = start('again', 1, '128');
  const stderr = ['', ''];
  for (const rank of RANKS) {
    children[rank]?.stderr?.on('data', (text) => {
      stderr[rank] += text;
    });
  }
  expect(await Promise.all(ends)).toEqual([1, 1]);
  server.stop();
  for (const text of stderr) expect(text).toMatch(/^DS_IO write .*errno 27.*ulimit -f/);
  expect(readdirSync(dir).sort()).toEqual(['again', 'latest']);
  expect((await valuesOf(dir)).w?.[0]).toBe(7);
});
