// Tests the exchange between ranks: results by rank, the failure of one on all, and JSON data only.
import { onAllRanks, soloWorld } from '../../lib/checkpoint/index.js';
import { DsError } from '../../lib/errors.js';
import { onRanks } from './joined-worlds.js';

interface Found {
  name: string | null;
  note?: string;
  readonly parts: readonly { shape: readonly number[] }[];
}

test('every rank gets the results of all, by rank', async () => {
  const reports = await onRanks(3, (world) =>
    onAllRanks(world, 'looking', async (): Promise<Found> => {
      return { name: `rank ${world.rank}`, parts: [{ shape: [world.rank] }] };
    }),
  );
  const all = [0, 1, 2].map((rank) => ({ name: `rank ${rank}`, parts: [{ shape: [rank] }] }));
  expect(reports).toEqual([0, 1, 2].map(() => ({ status: 'fulfilled', value: all })));
});

test('a failed rank keeps its own error, and the other ranks get the message', async () => {
  const localError = new DsError({
    code: 'DS_IO',
    op: 'disk',
    expected: 'room',
    got: 'none',
    hint: 'Go.',
  });
  const reports = await onRanks(2, (world) =>
    onAllRanks(world, 'writing', async () => {
      if (world.rank === 1) throw localError;
      return null;
    }),
  );
  const reported = { code: 'DS_CHECKPOINT', op: 'writing on rank 1: disk', expected: 'room' };
  expect(reports).toEqual([
    {
      status: 'rejected',
      reason: expect.objectContaining({ ...reported, got: 'none', hint: 'Go.' }),
    },
    { status: 'rejected', reason: localError },
  ]);
});

test('the error names the first of several failed ranks', async () => {
  const reports = await onRanks(3, (world) =>
    onAllRanks(world, 'writing', async () => {
      if (world.rank > 0) throw new TypeError(`no ${world.rank}`);
      return null;
    }),
  );
  const reason = { op: 'writing on rank 1: TypeError', got: 'TypeError: no 1' };
  expect(reports[0]).toEqual({ status: 'rejected', reason: expect.objectContaining(reason) });
});

/** In each marked line the compiler must find a mistake; scripts/check fails otherwise. */
test('values that JSON cannot represent do not compile', async () => {
  // @ts-expect-error a function
  await onAllRanks(soloWorld, '', async () => ({ count: 1, body: () => 1 }));
  // @ts-expect-error an object with methods
  await onAllRanks(soloWorld, '', async () => ({ when: new Date() }));
  // @ts-expect-error a Map
  await onAllRanks(soloWorld, '', async () => new Map([['a', 1]]));
  // @ts-expect-error undefined in a list
  await onAllRanks(soloWorld, '', async () => [1, undefined]);
  // @ts-expect-error nothing
  await onAllRanks(soloWorld, '', async () => {});
  expect(await onAllRanks(soloWorld, '', async (): Promise<Found[]> => [])).toEqual([[]]);
});
