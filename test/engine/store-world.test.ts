// Tests that exchanges between the ranks of a checkpoint end when the job fails, not at their
// timeout.
import { StoreWorld, type TextStore } from '../../lib/engine/saving/store-world.js';
import { DsError } from '../../lib/errors.js';

const died = new DsError({
  code: 'DS_COMM',
  op: 'process group',
  expected: 'every rank to stay until the end',
  got: 'rank 1: its connection broke',
});

const absent = (key: string) =>
  new DsError({ code: 'DS_COMM', op: 'store', expected: key, got: 'no such key' });

/** An in-memory store that fails once `broken` returns true. */
function store(broken: () => boolean): TextStore {
  const values = new Map<string, string>();
  const connected = () => {
    if (broken()) throw new Error('the store has closed');
  };
  return {
    set: async (key, value) => {
      connected();
      values.set(key, value);
    },
    get: async (key) => {
      connected();
      const value = values.get(key);
      if (value === undefined) throw absent(key);
      return value;
    },
    delete: async (key) => values.delete(key),
  };
}

function world(on: TextStore, check: () => void, timeout = 3_600_000): StoreWorld {
  return new StoreWorld(on, { rank: 0, size: 2, name: 'test', timeout, check });
}

test('a wait for another rank ends with what made the job fail', async () => {
  let looks = 0;
  const check = () => {
    if (++looks === 5) throw died;
  };
  await expect(
    world(
      store(() => false),
      check,
    ).exchange('saving', 1),
  ).rejects.toBe(died);
});

test('a store that breaks down is explained by the failure that the job learns of later', async () => {
  let looks = 0;
  const check = () => {
    if (++looks === 3) throw died;
  };
  await expect(
    world(
      store(() => true),
      check,
    ).exchange('saving', 1),
  ).rejects.toBe(died);
});

test('a store that breaks down in a job without a failure speaks for itself', async () => {
  const lonely = world(
    store(() => true),
    () => {},
  );
  await expect(lonely.exchange('saving', 1)).rejects.toThrow('the store has closed');
});

test('values that a rank sent before it died still count', async () => {
  const shared = store(() => false);
  const second = new StoreWorld(shared, {
    rank: 1,
    size: 2,
    name: 'test',
    timeout: 0,
    check: () => {},
  });
  await expect(second.exchange('saving', 2)).rejects.toThrow('no message from rank 0');
  const check = () => {
    throw died;
  };
  expect(await world(shared, check).exchange('saving', 1)).toEqual([1, 2]);
});

test('the hint comes from the world, for missing ranks and for ranks at another place', async () => {
  const shared = store(() => false);
  const seat = (rank: number, timeout: number) =>
    new StoreWorld(shared, {
      ...{ rank, size: 2, name: 'test', timeout, check: () => {} },
      hint: 'Do this.',
    });
  await expect(seat(0, 0).exchange('one', 1)).rejects.toThrow(/no message from rank 1. Do this.$/);
  await expect(seat(1, 0).exchange('two', 1)).rejects.toThrow(/"one" on rank 0. Do this.$/);
});

test('a rank that does not come in time is named', async () => {
  const alone = world(
    store(() => false),
    () => {},
    30,
  );
  await expect(alone.exchange('saving', 1)).rejects.toThrow('no message from rank 1');
});
