// A pool of models: loads on demand, memory, turns, failures and idle models, with fake engines.
import { getEventListeners, setMaxListeners } from 'node:events';
import { DsError } from '../../lib/errors.js';
import { readLimits } from '../../lib/serve/limits.js';
import { ModelPool, type ModelSource, type PoolLimits } from '../../lib/serve/model-pool.js';
import { createServedModel } from '../../lib/serve/served-model.js';
import { until } from './client.js';
import { FakeEngine } from './fake-engine.js';

const MiB = 2 ** 20;
const never = new AbortController().signal;
setMaxListeners(0, never);

/** A source that records its loads. */
class Source implements ModelSource {
  opened = 0;
  closed = 0;
  error: unknown = null;
  /** The error is over. */
  isMended = () => false;
  /** Waited for during a load. */
  gate: Promise<unknown> = Promise.resolve();

  constructor(
    readonly bytes = MiB,
    readonly real = bytes,
  ) {}

  async open() {
    await this.gate;
    if (this.error && !this.isMended()) throw this.error;
    this.opened++;
    const close = async (): Promise<void> => void this.closed++;
    return { engine: new FakeEngine(null), bytes: this.real, close };
  }
}

const reports: unknown[] = [];
let pool: ModelPool;

function poolOf(sources: Record<string, ModelSource>, limits: PoolLimits = {}): ModelPool {
  pool = new ModelPool(sources, limits);
  const reading = { threads: 1 } as never;
  pool.bind(
    (engine, name) => createServedModel(engine, name, readLimits('test'), reading),
    (error) => reports.push(error),
  );
  return pool;
}

afterEach(async () => {
  await pool.close();
  reports.length = 0;
});

const states = () => Object.fromEntries(pool.models.map(({ name, state }) => [name, state]));

test('a model is loaded once for all requests that wait for it', async () => {
  const a = new Source();
  poolOf({ a, b: new Source() });
  expect(states()).toEqual({ a: 'unloaded', b: 'unloaded' });
  expect(pool.now('a')).toBeNull();
  const leases = await Promise.all([1, 2, 3].map(() => pool.acquire('a', never)));
  expect(a.opened).toBe(1);
  expect(states()).toEqual({ a: 'loaded', b: 'unloaded' });
  expect(new Set(leases.map(({ served }) => served)).size).toBe(1);
  expect(pool.now('a')?.served.name).toBe('a');
  expect(pool.now(undefined)?.served.name).toBe('a');
});

test('a request that has its model listens to its client no more', async () => {
  const a = new Source();
  poolOf({ a, b: new Source() });
  const control = new AbortController();
  (await pool.acquire('a', control.signal)).release();
  expect(getEventListeners(control.signal, 'abort')).toEqual([]);
  a.error = new Error('none');
  const failing = new Source();
  failing.error = a.error;
  await pool.close();
  poolOf({ a: failing });
  await expect(pool.acquire('a', control.signal)).rejects.toMatchObject({ status: 503 });
  expect(getEventListeners(control.signal, 'abort')).toEqual([]);
});

test('the first loaded engine that has failed is the failed one, until it is closed', async () => {
  const engineOf = async (name: string) => {
    const { served, release } = await pool.acquire(name, never);
    release();
    return served.engine as { failure?: Error };
  };
  poolOf({ a: new Source(), b: new Source(), c: new Source() });
  const [b, c] = [await engineOf('b'), await engineOf('c')];
  expect(pool.failed).toBeUndefined();
  for (const engine of [c, b]) {
    engine.failure = new Error('a lost rank');
    expect(pool.failed).toBe(engine);
  }
  await pool.close();
  expect(pool.failed).toBeUndefined();
});

test('an unknown name gets 404 with the known names', () => {
  poolOf({ a: new Source(), b: new Source() });
  expect(() => pool.now('c')).toThrow(/model: expected "a", "b", got "c"/);
});

test('a pool without models is refused', () => {
  expect(() => new ModelPool({})).toThrow(/expected at least one model, got none/);
});

test('without room the least recently used idle model leaves', async () => {
  const [a, b, c] = [new Source(), new Source(), new Source()];
  poolOf({ a, b, c }, { memory: 2 * MiB });
  for (const name of ['a', 'b', 'a']) (await pool.acquire(name, never)).release();
  const held = await pool.acquire('c', never);
  expect(states()).toEqual({ a: 'loaded', b: 'unloaded', c: 'loaded' });
  expect(b.closed).toBe(1);
  expect(pool.used).toBe(2 * MiB);
  held.release();
});

test('a model that is larger than its estimate takes the place of the idle one used longest ago', async () => {
  const [a, b, c] = [new Source(), new Source(), new Source(MiB, 2 * MiB)];
  poolOf({ a, b, c }, { memory: 3 * MiB });
  for (const name of ['a', 'b', 'a']) (await pool.acquire(name, never)).release();
  (await pool.acquire('c', never)).release();
  expect(states()).toEqual({ a: 'loaded', b: 'unloaded', c: 'loaded' });
  expect([b.closed, pool.used, pool.models[2]?.bytes]).toEqual([1, 3 * MiB, 2 * MiB]);
});

test('a model in use is never unloaded: the load waits for its end, and new requests queue', async () => {
  const [a, b] = [new Source(), new Source()];
  poolOf({ a, b }, { memory: MiB });
  const first = await pool.acquire('a', never);
  const second = pool.acquire('b', never);
  await until(() => states().a === 'unloading');
  expect({ closed: a.closed, opened: b.opened }).toEqual({ closed: 0, opened: 0 });
  // A later request to the leaving model waits behind the other one.
  const third = pool.acquire('a', never);
  first.release();
  (await second).release();
  expect({ closed: a.closed, opened: b.opened }).toEqual({ closed: 1, opened: 1 });
  (await third).release();
  expect({ opened: a.opened, closed: b.closed }).toEqual({ opened: 2, closed: 1 });
});

test('if the requests that wait leave, the model in use stays', async () => {
  const [a, b] = [new Source(), new Source()];
  poolOf({ a, b }, { memory: MiB });
  const held = await pool.acquire('a', never);
  const control = new AbortController();
  const waiting = pool.acquire('b', control.signal);
  await until(() => states().a === 'unloading');
  control.abort(new Error('gone'));
  await expect(waiting).rejects.toThrow('gone');
  const again = await pool.acquire('a', never);
  expect({ a: a.opened, b: b.opened }).toEqual({ a: 1, b: 0 });
  held.release();
  again.release();
});

test('a failed load reports its reason, and is retried later', async () => {
  const a = new Source();
  a.error = new DsError({ code: 'DS_IO', op: 'load', expected: 'a folder', got: 'none' });
  poolOf({ a, b: new Source() });
  const expected = { status: 503, code: 'model_load_failed', param: 'model' };
  await expect(pool.acquire('a', never)).rejects.toMatchObject(expected);
  expect(pool.models[0]).toMatchObject({ state: 'failed', failures: 1, loads: 0 });
  expect(pool.models[0]?.reason).toMatch(/load: expected a folder, got none/);
  expect(reports).toEqual([a.error]);
  // Within ten seconds requests get the same error without another load.
  a.error = null;
  expect(() => pool.acquire('a', never)).toThrow(/did not load: .*expected a folder/);
  (await pool.acquire('b', never)).release();
  const clock = jest.spyOn(performance, 'now').mockReturnValue(performance.now() + 20_000);
  (await pool.acquire('a', never)).release();
  clock.mockRestore();
  expect(pool.models[0]).toMatchObject({ state: 'loaded', reason: null });
});

test('errors without a place are named in the log only', async () => {
  const a = new Source();
  a.error = new Error('a secret path');
  poolOf({ a });
  await expect(pool.acquire('a', never)).rejects.toThrow(/see the log of the server/);
  expect(reports).toEqual([a.error]);
});

test('a model larger than the budget is closed and refused', async () => {
  const a = new Source(MiB, 4 * MiB);
  poolOf({ a }, { memory: 2 * MiB });
  await expect(pool.acquire('a', never)).rejects.toThrow(/at most 2097152 bytes.*got 4194304/);
  expect(a.closed).toBe(1);
  expect(pool.used).toBe(0);
});

test('a too low estimate unloads idle models after the load', async () => {
  const [a, b] = [new Source(), new Source(1, 2 * MiB)];
  poolOf({ a, b }, { memory: 2 * MiB });
  (await pool.acquire('a', never)).release();
  (await pool.acquire('b', never)).release();
  expect(states()).toEqual({ a: 'unloaded', b: 'loaded' });
});

test('without memory on the device, idle models leave and the load runs once more', async () => {
  const [a, b] = [new Source(), new Source()];
  poolOf({ a, b });
  (await pool.acquire('a', never)).release();
  b.error = new DsError({ code: 'DS_OUT_OF_MEMORY', op: 'alloc', expected: 'room', got: 'none' });
  b.isMended = () => a.closed === 1;
  (await pool.acquire('b', never)).release();
  expect(states()).toEqual({ a: 'unloaded', b: 'loaded' });
});

test('idle models are unloaded after their time, models in use are not', async () => {
  const [a, b] = [new Source(), new Source()];
  poolOf({ a, b }, { idleSeconds: 0.04 });
  const held = await pool.acquire('a', never);
  (await pool.acquire('b', never)).release();
  await until(() => b.closed === 1);
  expect(states()).toEqual({ a: 'loaded', b: 'unloaded' });
  held.release();
  await until(() => a.closed === 1);
});

test('close() refuses waiting requests and unloads all models', async () => {
  const [a, b] = [new Source(), new Source()];
  let open = (): void => {};
  b.gate = new Promise<void>((resolve) => {
    open = resolve;
  });
  poolOf({ a, b });
  (await pool.acquire('a', never)).release();
  const waiting = pool.acquire('b', never);
  await until(() => pool.models[1]?.state === 'loading');
  const closed = pool.close();
  await expect(waiting).rejects.toMatchObject({ status: 503 });
  open();
  await closed;
  expect([a.closed, b.closed]).toEqual([1, 1]);
  expect(() => pool.acquire('a', never)).toThrow(/stopping/);
});

test('hundreds of requests for three models in room for one: every one is granted', async () => {
  const sources = { a: new Source(), b: new Source(), c: new Source() };
  poolOf(sources, { memory: MiB });
  const names = Object.keys(sources);
  let granted = 0;
  let peak = 0;
  const ask = async (i: number): Promise<void> => {
    const lease = await pool.acquire(names[i % 3], never);
    peak = Math.max(peak, pool.used);
    granted++;
    await new Promise((resolve) => setTimeout(resolve, i % 5));
    lease.release();
  };
  await Promise.all(Array.from({ length: 300 }, (_, i) => ask(i)));
  expect({ granted, peak }).toEqual({ granted: 300, peak: MiB });
  const { a, b, c } = sources;
  expect(a.opened + b.opened + c.opened - a.closed - b.closed - c.closed).toBe(1);
});

test('a too low estimate does not unload models in use', async () => {
  const [a, b] = [new Source(), new Source(1, 2 * MiB)];
  poolOf({ a, b, c: new Source() }, { memory: 2 * MiB });
  const held = await pool.acquire('a', never);
  (await pool.acquire('b', never)).release();
  expect(states()).toEqual({ a: 'loaded', b: 'loaded', c: 'unloaded' });
  held.release();
});

test('without memory on the device, models in use stay', async () => {
  const [a, b] = [new Source(), new Source()];
  poolOf({ a, b, c: new Source() });
  const held = await pool.acquire('a', never);
  b.error = new DsError({ code: 'DS_OUT_OF_MEMORY', op: 'alloc', expected: 'room', got: 'none' });
  let tries = 0;
  b.isMended = () => ++tries > 5;
  await expect(pool.acquire('b', never)).rejects.toThrow(/alloc: expected room/);
  expect({ tries, closed: a.closed }).toEqual({ tries: 1, closed: 0 });
  held.release();
});

test('counters cover the loaded models', async () => {
  poolOf({ a: new Source(), b: new Source() });
  expect([...pool.stats().keys()]).toEqual([]);
  (await pool.acquire('b', never)).release();
  expect([...pool.stats().keys()]).toEqual(['b']);
});
