// Tests that a thread pool answers in any order, rethrows errors of a thread, and replaces threads
// that end.
import { once } from 'node:events';
import { runInThisContext } from 'node:vm';
import type { Worker } from 'node:worker_threads';

import { DsError } from '../../lib/errors.js';
import { ThreadPool } from '../../lib/runtime/thread-pool.js';

const lostError = (got: string) =>
  new DsError({ code: 'DS_INTERNAL', op: 'asking', expected: 'an answer', got });

function poolOf(
  threads: number,
  timeoutMs = 60_000,
  heapMiB?: number,
): ThreadPool<unknown, number> {
  const entry = { folder: __dirname, entry: 'doubling-thread', data: {} };
  return new ThreadPool({ ...entry, threads, timeoutMs, heapMiB });
}

/** The real process object, which receives thread events; a jest test file has a copy. */
const node: NodeJS.Process = runInThisContext('process');

/** Pending timers of this process. */
const timers = () => node.getActiveResourcesInfo().filter((name) => name === 'Timeout').length;

test('a pool runs more requests than threads, and returns errors of threads', async () => {
  const pool = poolOf(2);
  const numbers = [1, 2, 3, 4, 5];
  const answers = await Promise.all(numbers.map((number) => pool.ask(number, lostError)));
  expect(answers).toEqual([2, 4, 6, 8, 10]);
  await expect(pool.ask('x', lostError)).rejects.toMatchObject({ code: 'DS_DATA', got: 'x' });
  const odd = expect(pool.ask('odd', lostError)).rejects;
  await odd.toMatchObject({ code: 'DS_INTERNAL', got: expect.stringMatching(/TypeError: odd/) });
  expect(await pool.ask(7, lostError)).toBe(14);
  await pool.close();
  await expect(pool.ask(1, lostError)).rejects.toThrow('a closed pool');
});

test('a thread that ends or hangs is replaced', async () => {
  const pool = poolOf(1);
  await expect(pool.ask('end', lostError)).rejects.toThrow('exit code 3');
  expect(await pool.ask(4, lostError)).toBe(8);
  await pool.close();
  const impatient = poolOf(1, 1);
  await expect(impatient.ask('hang', lostError)).rejects.toThrow('no answer for 1 ms');
  await expect(impatient.ask('hang', lostError)).rejects.toThrow('no answer for 1 ms');
  await impatient.close();
});

test('a thread that does not start times out', async () => {
  const entry = { folder: __dirname, entry: 'silent-thread', data: {} };
  const pool = new ThreadPool({ ...entry, threads: 1, timeoutMs: 60_000, startMs: 1 });
  await expect(pool.ask(1, lostError)).rejects.toThrow('no start within 1 ms');
  await pool.close();
});

test('a thread that exceeds its heap limit is replaced', async () => {
  const pool = poolOf(1, 60_000, 100);
  await expect(pool.ask('grow', lostError)).rejects.toThrow(/memory limit/);
  expect(await pool.ask(4, lostError)).toBe(8);
  await pool.close();
});

test('a limit may exceed the longest timer', async () => {
  const pool = poolOf(1, 2 ** 31);
  expect(await pool.ask(4, lostError)).toBe(8);
  await pool.close();
});

test('a thread that ended while idle is replaced', async () => {
  const pool = poolOf(1);
  const started = once(node, 'worker') as Promise<[Worker]>;
  const answer = pool.ask('end soon', lostError);
  const [thread] = await started;
  const ended = once(thread, 'exit');
  expect(await answer).toBe(0);
  await ended;
  expect(await pool.ask(4, lostError)).toBe(8);
  await pool.close();
});

test('a cancelled request frees its thread, and its place in the queue', async () => {
  const pool = poolOf(1);
  const [running, waiting] = [new AbortController(), new AbortController()];
  const first = pool.ask('hang', lostError, running.signal);
  const second = pool.ask('hang', lostError, waiting.signal);
  const third = pool.ask(3, lostError, new AbortController().signal);
  waiting.abort('gone, too');
  await expect(second).rejects.toBe('gone, too');
  running.abort('gone');
  await expect(first).rejects.toBe('gone');
  expect(await third).toBe(6);
  await expect(pool.ask(4, lostError, running.signal)).rejects.toBe('gone');
  expect(await pool.ask(5, lostError)).toBe(10);
  await pool.close();
});

test('a request that cannot be copied fails alone, without leftovers', async () => {
  const pool = poolOf(1);
  expect(await pool.ask(1, lostError)).toBe(2);
  const before = timers();
  let deep: unknown = 0;
  for (let i = 0; i < 100_000; ++i) deep = [deep];
  for (const odd of [deep, () => {}]) {
    await expect(pool.ask(odd, lostError)).rejects.toMatchObject({
      code: 'DS_INTERNAL',
      got: expect.stringMatching(/^a question that cannot be copied/),
    });
  }
  expect(timers()).toBe(before);
  expect(await pool.ask(2, lostError)).toBe(4);
  await pool.close();
});
