// Tests the waits of an asynchronous save: for its thread, state on a disk, and the other ranks.
import { EventEmitter } from 'node:events';

import { BEGIN_SAVE, type CheckpointContent, type LocalShard } from '../../lib/checkpoint/index.js';
import { describeJob, errorOf, failureOf } from '../../lib/engine/saving/background-job.js';
import { BackgroundSave } from '../../lib/engine/saving/background-save.js';
import { divideFragment, remoteState } from '../../lib/engine/saving/engine-shards.js';
import { HostCopy } from '../../lib/engine/saving/host-copy.js';
import { StoreWorld, type TextStore } from '../../lib/engine/saving/store-world.js';
import { DsError, initialize, nn, scope, Tensor } from '../../lib/index.js';
import { perElement } from '../../lib/optim/declared-state.js';
import { Buffer } from '../../lib/runtime/buffer.js';
import { startThread } from '../../lib/runtime/thread.js';
import type { LentState } from '../../lib/zero/state/memory.js';

jest.mock('../../lib/runtime/thread.js', () => ({
  ...jest.requireActual('../../lib/runtime/thread.js'),
  startThread: jest.fn(),
}));

/** A save with a thread of the test. */
function savedBy(thread: EventEmitter, tag: string): BackgroundSave {
  jest.mocked(startThread).mockReturnValueOnce(thread as never);
  const content: CheckpointContent<LocalShard> = {
    part: null,
    model: [],
    modelIsSharded: false,
    optimizer: [],
    state: {},
    catalog: { model: new Map(), optimizer: new Map() } as never,
    rankState: null,
    description: null,
  };
  return new BackgroundSave({ dir: '/saved', tag, saveLatest: true }, content, null);
}

test('a thread that dies without an answer fails the save', async () => {
  const thread = new EventEmitter();
  const save = savedBy(thread, 'one');
  const ended = Promise.allSettled([save.whenBegun(), save.whenWritten()]);
  thread.emit('exit', 7);
  const got = { status: 'rejected', reason: { got: 'a save thread that ended with exit code 7' } };
  expect(await ended).toMatchObject([got, got]);
  expect(process.listeners('exit').filter(({ name }) => name === 'awaitAll')).toEqual([]);
});

test('a save copies the state within the call; the next one waits for it, in the same step', async () => {
  const model = new nn.Linear(2, 1);
  const { engine } = await initialize({
    model,
    config: { train_batch_size: 1, optimizer: { type: 'SGD', params: {} } },
    device: 'cpu',
  });
  const taken = jest.spyOn(HostCopy.prototype, 'take');
  const start = () => {
    const thread = new EventEmitter();
    jest.mocked(startThread).mockReturnValueOnce(thread as never);
    return { thread, saved: engine.saveCheckpoint('/saved', { asynchronous: true }) };
  };
  const turn = () => new Promise(setImmediate);
  const first = start();
  expect(taken).toHaveBeenCalledTimes(1);
  await turn();
  first.thread.emit('message', { begun: 'one' });
  expect(await first.saved).toBe('one');
  const second = start();
  await turn();
  expect(taken).toHaveBeenCalledTimes(1);
  first.thread.emit('message', { written: 'one' });
  await turn();
  expect(taken).toHaveBeenCalledTimes(2);
  second.thread.emit('message', { begun: 'two' });
  expect(await second.saved).toBe('two');
  const third = engine.saveCheckpoint('/saved', { asynchronous: true });
  scope(() => engine.backward(engine.forward<Tensor>(Tensor.from([[1, 2]])).mean()));
  engine.step();
  second.thread.emit('message', { written: 'two' });
  await expect(third).rejects.toMatchObject({
    code: 'DS_CHECKPOINT',
    op: 'saveCheckpoint',
    hint: 'Await saveCheckpoint().',
    expected: 'the state of step 0, the step of the call',
    got: 'step 1: training continued while the previous save was running',
  });
  expect(await engine.checkpointDone()).toBeNull();
  taken.mockRestore();
  engine.destroy();
});

test('an error of a thread, or at its start, fails the save', async () => {
  const thread = new EventEmitter();
  const save = savedBy(thread, 'one');
  const ended = Promise.allSettled([save.whenBegun(), save.whenWritten()]);
  thread.emit('error', new Error('a fault of the thread'));
  const outcome = (text: string, code = 'DS_INTERNAL') => {
    const reason = { code, op: 'saveCheckpoint', got: expect.stringContaining(text) };
    return [0, 1].map(() => ({ status: 'rejected', reason }));
  };
  expect(await ended).toMatchObject(outcome('a fault of the thread'));
  const none = (error: Error): Promise<unknown> => {
    const refusing = new Proxy(new EventEmitter(), {
      get() {
        throw error;
      },
    });
    const refused = savedBy(refusing, 'two');
    return Promise.allSettled([refused.whenBegun(), refused.whenWritten()]);
  };
  expect(await none(new Error('no thread'))).toMatchObject(outcome('no thread'));
  const limit = Object.assign(new Error('too many'), { code: 'ERR_WORKER_INIT_FAILED' });
  expect(await none(limit)).toMatchObject(outcome('none: too many', 'DS_LIMIT'));
  expect(process.listeners('exit').filter(({ name }) => name === 'awaitAll')).toEqual([]);
});

test('the end of the process waits for all saves together, and names the ones that are late', async () => {
  const threads = [new EventEmitter(), new EventEmitter()];
  const saves = threads.map((thread, i) => savedBy(thread, `step${i}`));
  const listeners = process.listeners('exit').filter(({ name }) => name === 'awaitAll');
  expect(listeners).toHaveLength(1);
  let now = 1_000_000;
  jest.spyOn(Date, 'now').mockImplementation(() => now);
  const waits: number[] = [];
  const wait = jest.spyOn(Atomics, 'wait').mockImplementation((_array, _index, _value, limit) => {
    waits.push(limit as number);
    now += 400_000;
    return 'timed-out';
  });
  const write = jest.spyOn(process.stderr, 'write').mockReturnValue(true);
  try {
    listeners[0]?.(0);
    expect(waits).toEqual([600_000, 200_000]);
    wait.mockReturnValue('ok');
    listeners[0]?.(0);
    // No limit is negative, which would wait without end.
    wait.mockReturnValue('timed-out');
    now = 1_000_000;
    const late = [0, 700_000].values();
    jest.spyOn(Date, 'now').mockImplementation(() => now + (late.next().value ?? 700_000));
    listeners[0]?.(0);
    expect(wait.mock.calls.at(-1)?.[3]).toBe(0);
    expect(write.mock.calls.map(([text]) => text).slice(0, 2)).toEqual([
      'The checkpoint step0 in /saved was not saved in time.\n',
      'The checkpoint step1 in /saved was not saved in time.\n',
    ]);
    expect(write.mock.calls).toHaveLength(4);
  } finally {
    jest.restoreAllMocks();
  }
  for (const [i, thread] of threads.entries()) thread.emit('message', { written: `path${i}` });
  expect(await Promise.all(saves.map((save) => save.whenWritten()))).toEqual(['path0', 'path1']);
  expect(process.listeners('exit').filter(({ name }) => name === 'awaitAll')).toEqual([]);
});

test('the copy of the state is freed by the end of the engine, or of the save after it', async () => {
  const freed = jest.spyOn(HostCopy.prototype, 'dispose');
  for (const endsFirst of [true, false]) {
    const thread = new EventEmitter();
    jest.mocked(startThread).mockReturnValueOnce(thread as never);
    const { engine } = await initialize({
      model: new nn.Linear(2, 2),
      config: { train_batch_size: 1, optimizer: { type: 'AdamW' } },
      device: 'cpu',
    });
    const begun = engine.saveCheckpoint('/saved', { asynchronous: true });
    await new Promise(setImmediate);
    thread.emit('message', { begun: '/saved/one' });
    expect(await begun).toBe('/saved/one');
    const end = async (): Promise<void> => {
      thread.emit('message', { written: '/saved/one' });
      expect(await engine.checkpointDone()).toBe('/saved/one');
    };
    if (endsFirst) await end();
    expect(freed).not.toHaveBeenCalled();
    engine.destroy();
    expect(freed).toHaveBeenCalledTimes(endsFirst ? 1 : 0);
    if (!endsFirst) await end();
    expect(freed).toHaveBeenCalledTimes(1);
    freed.mockClear();
  }
  freed.mockRestore();
});

test('a thread reports warnings, its start, and its end or failure', async () => {
  const thread = new EventEmitter();
  const save = savedBy(thread, 'one');
  const warn = jest.spyOn(process, 'emitWarning').mockImplementation(() => {});
  thread.emit('message', { warning: { message: 'slow', name: 'DsWarning', code: 'DS_IO' } });
  expect(warn.mock.calls).toEqual([['slow', { type: 'DsWarning', code: 'DS_IO' }]]);
  warn.mockRestore();
  thread.emit('message', { begun: '/saved/one' });
  expect(await save.whenBegun()).toBe('/saved/one');
  const failure = {
    code: 'DS_IO',
    op: 'write',
    expected: 'space',
    got: 'none',
    hint: 'Free some.',
  };
  thread.emit('message', { failure });
  await expect(save.whenWritten()).rejects.toMatchObject({ ...failure, name: 'DsError' });
});

test.each([1, 256])('a part of state with %i elements per value waits for its disk', (per) => {
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

test('only state per element is divided into fragments', () => {
  const numel = 2 ** 22 + 5;
  const fragment = { entry: {} as never, from: 3, offset: 100, numel };
  const state = (per: number | null) => ({ ...perElement([numel]), per });
  const parts = [...divideFragment(fragment, state(1))];
  expect(parts.length).toBeGreaterThan(1);
  let at = 0;
  for (const part of parts) {
    expect([part.from, part.offset]).toEqual([3 + at, 100 + at]);
    at += part.numel;
  }
  expect(at).toBe(numel);
  for (const per of [256, null])
    expect([...divideFragment(fragment, state(per))]).toEqual([fragment]);
  const none = { ...fragment, numel: 0 };
  expect([...divideFragment(none, state(1))]).toEqual([none]);
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

test('a substitute for a rank names exactly the missing ranks', async () => {
  const shared = store();
  const seat = (rank: number, check = () => {}): StoreWorld =>
    new StoreWorld(shared, { rank, size: 3, name: 'test', timeout: 3_600_000, check });
  const warnings: string[] = [];
  const ended = new Error('the test has seen enough');
  const first = seat(0, () => {
    if (warnings.length > 0) throw ended;
  });
  first.onAbsence((text) => warnings.push(text));
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
  expect(warnings).toEqual([
    `rank 0 waits in ${call} for rank 2: ${call} must be called on all ranks`,
  ]);
});

test('a job has each memory once, plain data, and the place of every tensor in it', () => {
  const [a, b] = [Tensor.from([1, 2, 3, 4]), Tensor.from([5, 6], { dtype: 'f16' })];
  const part = a.alias([2], [1], 2);
  const shard = (name: string, tensor: Tensor): LocalShard => ({
    name,
    shape: [9],
    from: 3,
    tensor,
  });
  const content = {
    part: null,
    modelIsSharded: false,
    catalog: 'catalog',
    description: { gone: undefined },
    state: { kept: 1, gone: undefined },
    rankState: null,
    model: [shard('a', a), shard('b', b)],
    optimizer: [shard('part', part)],
  };
  const offers: number[] = [];
  const offer = jest.spyOn(Buffer.prototype, 'offer').mockImplementation(function (this: Buffer) {
    offers.push(this.bytes);
    return 100 + offers.length;
  });
  const target = { dir: '/saved', tag: 't', saveLatest: true };
  const job = describeJob(target, content as never, null);
  offer.mockRestore();
  expect(offers).toEqual([a.buffer.bytes, b.buffer.bytes]);
  expect(job.memory).toEqual([
    { offer: 101, bytes: a.buffer.bytes },
    { offer: 102, bytes: b.buffer.bytes },
  ]);
  const entry = { shape: [9], from: 3 };
  expect([...job.content.model, ...job.content.optimizer]).toEqual([
    { ...entry, name: 'a', memory: 0, dtype: 'f32', size: [4], offset: 0 },
    { ...entry, name: 'b', memory: 1, dtype: 'f16', size: [2], offset: 0 },
    { ...entry, name: 'part', memory: 0, dtype: 'f32', size: [2], offset: 2 },
  ]);
  expect(job.content).toMatchObject({ rankState: null, catalog: 'catalog' });
  expect([job.content.state, job.content.description]).toEqual([{ kept: 1 }, {}]);
  expect(Object.keys(job.content.state)).toEqual(['kept']);
  expect([job.ended.length, job.ended[0], job.world, job.target]).toEqual([1, 0, null, target]);
  for (const tensor of [a, b, part]) tensor.dispose();
});

test('a failure of a thread is the same error, and one of another library has a code', () => {
  const facts = { op: 'write', expected: 'space', got: 'none', hint: 'Free some.' };
  const localError = new DsError({ code: 'DS_IO', ...facts });
  expect(failureOf(localError)).toEqual({ code: 'DS_IO', ...facts });
  expect(errorOf(failureOf(localError))).toMatchObject({ code: 'DS_IO', ...facts });
  const other = failureOf(new Error('a fault'));
  expect(other).toMatchObject({ code: null, op: 'saveCheckpoint', expected: 'success', hint: '' });
  expect(other.got).toMatch(/^Error: a fault\n/);
  expect(errorOf(other).code).toBe('DS_INTERNAL');
  expect(failureOf('text').got).toBe('text');
  const bare = Object.assign(new Error('bare'), { stack: undefined });
  expect(failureOf(bare).got).toBe('bare');
});
