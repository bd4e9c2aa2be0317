// A pool of threads answers in any order, tells what a thread threw, and replaces those that end.
import { DsError } from '../../lib/errors.js';
import { ThreadPool } from '../../lib/runtime/thread-pool.js';

const lost = (got: string) =>
  new DsError({ code: 'DS_INTERNAL', op: 'asking', expected: 'an answer', got });

function poolOf(threads: number, timeoutMs = 60_000): ThreadPool<number | string, number> {
  const entry = { folder: __dirname, entry: 'doubling-thread', data: {} };
  return new ThreadPool({ ...entry, threads, timeoutMs });
}

test('more questions than threads, and what a thread throws', async () => {
  const pool = poolOf(2);
  const numbers = [1, 2, 3, 4, 5];
  const answers = await Promise.all(numbers.map((number) => pool.ask(number, lost)));
  expect(answers).toEqual([2, 4, 6, 8, 10]);
  await expect(pool.ask('x', lost)).rejects.toMatchObject({ code: 'DS_DATA', got: 'x' });
  const odd = expect(pool.ask('odd', lost)).rejects;
  await odd.toMatchObject({ code: 'DS_INTERNAL', got: expect.stringMatching(/TypeError: odd/) });
  expect(await pool.ask(7, lost)).toBe(14);
  await pool.close();
  await expect(pool.ask(1, lost)).rejects.toThrow('a pool that was closed');
});

test('a thread that ends, or says nothing, is replaced', async () => {
  const pool = poolOf(1);
  await expect(pool.ask('end', lost)).rejects.toThrow('exit code 3');
  expect(await pool.ask(4, lost)).toBe(8);
  await pool.close();
  const impatient = poolOf(1, 1);
  await expect(impatient.ask('hang', lost)).rejects.toThrow('nothing for 1 ms');
  await expect(impatient.ask('hang', lost)).rejects.toThrow('nothing for 1 ms');
  await impatient.close();
});
