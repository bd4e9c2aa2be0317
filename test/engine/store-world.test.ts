// Tests that exchanges between the ranks of a checkpoint end when the job fails, not at their
// timeout.
import { BEGIN_SAVE } from '../../lib/checkpoint/index.js';
import { Checkpointer } from '../../lib/engine/saving/checkpointer.js';
import {
  StoreWorld,
  type TextStore,
  type WorldOffer,
} from '../../lib/engine/saving/store-world.js';
import { DsError } from '../../lib/errors.js';

/** Pauses only pass the turn. */
jest.mock('node:timers/promises', () => ({
  setTimeout: () => new Promise((resolve) => setImmediate(resolve)),
}));

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
  const connectStore = () => {
    if (broken()) throw new Error('the store has closed');
  };
  return {
    set: async (key, value) => {
      connectStore();
      values.set(key, value);
    },
    get: async (key) => {
      connectStore();
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

test('a wait for another rank ends with the failure of the job', async () => {
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

test('an error of the store is replaced by the later failure of the job', async () => {
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

test('the error of a broken store is thrown if the job has no failure', async () => {
  const lonely = world(
    store(() => true),
    () => {},
  );
  await expect(lonely.exchange('saving', 1)).rejects.toThrow('the store has closed');
});

test('a wait for another rank ends with the first other error of the store', async () => {
  const shared = { ...store(() => false), get: jest.fn(() => Promise.reject(new Error('broken'))) };
  await expect(world(shared, () => {}, 50).exchange('saving', 1)).rejects.toThrow('broken');
  expect(shared.get).toHaveBeenCalledTimes(1);
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

test('the hint of the world is used for missing ranks and for other calls', async () => {
  const shared = store(() => false);
  const offered = (rank: number, timeout: number) =>
    new StoreWorld(shared, {
      rank,
      size: 2,
      name: 'test',
      timeout,
      check: () => {},
      hint: 'Do this.',
    });
  await expect(offered(0, 0).exchange('one', 1)).rejects.toThrow(
    /no message from rank 1. Do this.$/,
  );
  await expect(offered(1, 0).exchange('two', 1)).rejects.toThrow(/"one" on rank 0. Do this.$/);
});

test('the error names a rank that is late', async () => {
  const alone = world(
    store(() => false),
    () => {},
    30,
  );
  await expect(alone.exchange('saving', 1)).rejects.toThrow('no message from rank 1');
});

/** Worlds of two ranks on one store, and the keys that it holds. */
function pair() {
  const values = new Map<string, string>();
  const shared: TextStore = {
    set: async (key, value) => void values.set(key, value),
    get: async (key) => {
      const value = values.get(key);
      if (value === undefined) throw absent(key);
      return value;
    },
    delete: async (key) => values.delete(key),
    add: async (key, step) => {
      const sum = Number(values.get(key) ?? 0) + step;
      values.set(key, String(sum));
      return sum;
    },
  };
  const worlds = [0, 1].map(
    (rank) =>
      new StoreWorld(shared, { rank, size: 2, name: 'test', timeout: 60_000, check: () => {} }),
  ) as [StoreWorld, StoreWorld];
  return { values, worlds };
}

const exchangeAll = (worlds: readonly StoreWorld[], label: string, value: unknown) =>
  Promise.all(worlds.map((world) => world.exchange(label, value as never)));

test('a value of several chunks and of any characters arrives, and leaves no key', async () => {
  const { values, worlds } = pair();
  const long = `${'x'.repeat(2 ** 20)}é😀\n"${'y'.repeat(2 ** 21)}`;
  expect(await exchangeAll(worlds, 'saving', { long })).toEqual(
    [0, 1].map(() => [{ long }, { long }]),
  );
  expect(values.size).toBeGreaterThan(6);
  for (const value of values.values()) expect(value.length).toBeLessThanOrEqual(2 ** 20 + 8);
  // The next round deletes the keys of the last one.
  await exchangeAll(worlds, 'saving', 1);
  expect(values.size).toBe(2);
});

test('many rounds of calls leave the keys of the last one', async () => {
  const { values, worlds } = pair();
  const left: number[] = [];
  for (let i = 0; i < 4; ++i) {
    await exchangeAll(worlds, BEGIN_SAVE, i);
    left.push(values.size);
  }
  // A message of each rank, and the count of arrivals.
  expect(left).toEqual([3, 3, 3, 3]);
});

test('parallel worlds do not disturb each other', async () => {
  const { worlds } = pair();
  const beside = worlds.map((world) => world.beside());
  const [inner, outer] = await Promise.all([
    exchangeAll(beside, 'inner', 1),
    exchangeAll(worlds, 'outer', 2),
  ]);
  expect([inner, outer]).toEqual([
    [
      [1, 1],
      [1, 1],
    ],
    [
      [2, 2],
      [2, 2],
    ],
  ]);
  const [more] = await exchangeAll(beside, 'inner', 3);
  expect(more).toEqual([3, 3]);
});

test('a rank that ends its engine tells the others, after its last call', async () => {
  let answer = (_: unknown[]): void => {};
  const announced: unknown[][] = [];
  const world = Object.assign(Object.create(StoreWorld.prototype), {
    rank: 0,
    size: 2,
    onAbsence() {},
    exchange: () =>
      new Promise((resolve) => {
        answer = resolve;
      }),
    announce: async (...items: unknown[]) => void announced.push(items),
  });
  const idle = new Checkpointer({} as never, world);
  idle.close();
  expect(announced).toEqual([['engine.destroy()', null]]);
  const busy = new Checkpointer({} as never, world);
  const call = busy.load('', {});
  await new Promise(setImmediate);
  busy.close();
  expect(announced).toHaveLength(1);
  answer([null, null]);
  await expect(call).rejects.toMatchObject({ code: 'DS_ARGUMENT' });
  expect(announced).toHaveLength(2);
  await expect(busy.load('', {})).rejects.toMatchObject({
    code: 'DS_AUTOGRAD',
    op: 'loadCheckpoint',
    expected: 'a call before engine.destroy()',
  });
  expect(announced).toHaveLength(2);
});

test('a thread can replace its rank after a check of the job', async () => {
  const { worlds } = pair();
  expect(worlds[0].offer()).toBeNull();
  const shared = Object.assign(
    store(() => false),
    { offer: () => 42 },
  );
  const localStoreWorld = new StoreWorld(shared, {
    rank: 1,
    size: 2,
    name: 'test',
    timeout: 60,
    hint: 'Do this.',
    check: () => {},
  });
  const offered = localStoreWorld.beside().offer();
  expect(offered).toEqual({
    offer: 42,
    rank: 1,
    size: 2,
    name: 'test/beside/0',
    timeout: 60,
    hint: 'Do this.',
    first: { name: 'test', number: 0 },
  });
  const check = jest.fn(() => {
    throw died;
  });
  const taken = StoreWorld.take(offered as WorldOffer, { ...shared, check } as never);
  expect([taken.rank, taken.size]).toEqual([1, 2]);
  // Its first exchange is the one that the rank would have made, and it fails with the job.
  const other = new StoreWorld(shared, {
    rank: 0,
    size: 2,
    name: 'test',
    timeout: 60_000,
    check: () => {},
  });
  await other.announce('saving', 1);
  expect(await taken.exchange('saving', 2)).toEqual([1, 2]);
  await expect(taken.exchange('saving', 3)).rejects.toBe(died);
  expect(check).toHaveBeenCalled();
});

test('an announcement is the message of an exchange', async () => {
  const { worlds } = pair();
  const [first, second] = worlds;
  await second.announce('saving', { error: 'gone' });
  expect(await first.exchange('saving', 1)).toEqual([1, { error: 'gone' }]);
});

test('ranks that arrive in time are not replaced', async () => {
  const { worlds } = pair();
  const messages: string[] = [];
  for (const storeWorld of worlds) storeWorld.onAbsence((text) => messages.push(text));
  for (let i = 0; i < 3; ++i) await exchangeAll(worlds, BEGIN_SAVE, i);
  await exchangeAll(worlds, 'inner', 1);
  expect(messages).toEqual([]);
});
