// What an asynchronous save waits for: its thread, state on a disk, and the other ranks.
import { EventEmitter } from 'node:events';

import { BEGIN_SAVE, type CheckpointContent, type LocalShard } from '../../lib/checkpoint/index.js';
import { BackgroundSave } from '../../lib/engine/saving/background-save.js';
import { remoteState } from '../../lib/engine/saving/remote-state.js';
import { StoreWorld, type TextStore } from '../../lib/engine/saving/store-world.js';
import { DsError, Tensor } from '../../lib/index.js';
import { startThread } from '../../lib/runtime/thread.js';
import type { LentState } from '../../lib/zero/state/lent-state.js';

jest.mock('../../lib/runtime/thread.js', () => ({
  ...jest.requireActual('../../lib/runtime/thread.js'),
  startThread: jest.fn(),
}));

test('a thread that dies without an answer fails the save', async () => {
  const thread = new EventEmitter();
  jest.mocked(startThread).mockReturnValueOnce(thread as never);
  const content: CheckpointContent<LocalShard> = {
    ...{ part: null, model: [], modelIsSharded: false, optimizer: [], state: {} },
    ...{ catalog: { model: new Map(), optimizer: new Map() } as never },
    ...{ rankState: null, description: null },
  };
  const target = { dir: '/saved', tag: 'one', saveLatest: true };
  const save = new BackgroundSave(target, content, null);
  const ended = Promise.allSettled([save.begun(), save.written()]);
  thread.emit('exit', 7);
  const got = { status: 'rejected', reason: { got: 'exit code 7 of the thread' } };
  expect(await ended).toMatchObject([got, got]);
  expect(process.listeners('exit').filter(({ name }) => name === 'awaitAll')).toEqual([]);
});

test.each([1, 256])('a part of state with %i elements a value waits for its disk', (per) => {
  const wait = jest.fn();
  const tensor = Tensor.from([1, 2, 3, 4]);
  const lent = { tensor: tensor.retain(), wait, arrived: async () => {} } as unknown as LentState;
  const fragment = { entry: {} as never, from: 0, offset: 0, numel: 4 };
  const state = remoteState(() => lent, fragment, { per, dtype: 'f32', numel: 4 });
  const part = state.borrow(0, 4);
  expect(wait).not.toHaveBeenCalled();
  part.wait();
  expect(wait).toHaveBeenCalledTimes(1);
  part.tensor.release();
  tensor.release();
});

/** A store in memory. */
function store(): TextStore {
  const [texts, numbers] = [new Map<string, string>(), new Map<string, number>()];
  const absent = (key: string): DsError =>
    new DsError({ code: 'DS_COMM', op: 'store', expected: key, got: 'no such key' });
  return {
    set: async (key, value) => void texts.set(key, value),
    get: async (key) => {
      const value = texts.get(key);
      if (value === undefined) throw absent(key);
      return value;
    },
    delete: async (key) => texts.delete(key),
    add: async (key, step) => {
      numbers.set(key, (numbers.get(key) ?? 0) + step);
      return numbers.get(key) as number;
    },
  };
}

test('a rank that stands in names the ranks that have not come, and no other', async () => {
  const shared = store();
  const seat = (rank: number, check = () => {}): StoreWorld =>
    new StoreWorld(shared, { rank, size: 3, name: 'test', timeout: 3_600_000, check });
  const said: string[] = [];
  const ended = new Error('the test has seen enough');
  const first = seat(0, () => {
    if (said.length > 0) throw ended;
  });
  first.standBy((text) => said.push(text));
  await seat(1).announce(BEGIN_SAVE, 1);
  // It stands in after seconds: each look at the clock is one later.
  let now = Date.now();
  const clock = jest.spyOn(Date, 'now').mockImplementation(() => {
    now += 1000;
    return now;
  });
  try {
    await expect(first.exchange(BEGIN_SAVE, 1)).rejects.toBe(ended);
  } finally {
    clock.mockRestore();
  }
  const call = 'saveCheckpoint()';
  expect(said).toEqual([`rank 0 waits in ${call} for rank 2: ${call} must be called on all ranks`]);
});
