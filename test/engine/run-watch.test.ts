// engine.watch() records the values of a program, and refuses values of other types.
import { existsSync, mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { hostname, tmpdir } from 'node:os';
import { join } from 'node:path';

import type { FinishedStep, StepObserver } from '../../lib/engine/watch/phase-timer.js';
import { RunWatch, watchRun } from '../../lib/engine/watch/run-watch.js';
import { Linear } from '../../lib/nn/index.js';
import { AdamW } from '../../lib/optim/index.js';
import { cpu } from '../../lib/runtime/device.js';
import { version } from '../../lib/version.js';
import { EventLog, ServedPage } from '../../lib/watch/index.js';
import { thrownBy } from '../support/refusal.js';

function openWatch() {
  const events: object[] = [];
  const calls: string[] = [];
  const parts = {
    log: {
      write: (event: object) => void events.push(event),
      flush: async () => void calls.push('flush'),
    },
    recorder: { pause: () => void calls.push('pause') },
    step: () => 7,
    end: (reason: string) => void calls.push(`end ${reason}`),
    close: async () => void calls.push('close'),
  };
  return { watch: new RunWatch('dir', null, parts as never), events, calls };
}

test('events have their step', async () => {
  const { watch, events, calls } = openWatch();
  watch.scalars({ a: 1, b: Number.NaN });
  watch.evaluated({ loss: 2 });
  watch.text({ text: 'b' });
  watch.log('line');
  watch.notice('odd');
  watch.notice('late', 'warning');
  watch.speed(3, { tokens: 9 });
  watch.length(12);
  watch.length(Number.POSITIVE_INFINITY);
  expect(events).toEqual([
    { e: 'row', track: 'own', step: 7, values: { a: 1, b: Number.NaN } },
    { e: 'row', track: 'eval', step: 7, values: { loss: 2 } },
    { e: 'text', step: 7, prompt: '', text: 'b' },
    { e: 'log', line: 'line' },
    { e: 'notice', level: 'info', message: 'odd', step: 7 },
    { e: 'notice', level: 'warning', message: 'late', step: 7 },
    { e: 'row', track: 'speed', step: 3, values: { tokens: 9 } },
    { e: 'length', steps: 12 },
  ]);
  watch.pause();
  watch.ended('finished');
  await watch.flush();
  await watch.close();
  await watch.close();
  expect(calls).toEqual(['pause', 'end finished', 'flush', 'close']);
});

test.each<[name: string, call: (watch: RunWatch) => void]>([
  ['watch b', (watch) => watch.scalars({ a: 1, b: '2' as never })],
  ['watch loss', (watch) => watch.evaluated({ loss: null as never })],
  ['watch.text text', (watch) => watch.text({ text: 3 as never })],
  ['watch.log', (watch) => watch.log({} as never)],
  ['watch.notice level', (watch) => watch.notice('odd', 'fatal' as never)],
  ['watch.notice', (watch) => watch.notice(5 as never)],
])('%s refuses another type, on every rank', (name, call) => {
  const { watch, events } = openWatch();
  for (const runWatch of [watch, new RunWatch('dir', null, null)])
    expect(thrownBy(() => call(runWatch))).toMatchObject({ code: 'DS_ARGUMENT', op: name });
  expect(events).toEqual([]);
});

test('a rank without a page records nothing', async () => {
  const watch = new RunWatch('dir', null, null);
  watch.scalars({ a: 1 });
  watch.text({ text: 'b' });
  watch.log('line');
  watch.notice('odd');
  watch.ended('finished');
  await watch.flush();
  await watch.close();
});

describe('the run of an engine', () => {
  const dir = mkdtempSync(join(tmpdir(), 'ds-run-watch-'));
  afterAll(() => rmSync(dir, { recursive: true }));

  /** The parts of an engine that a recording reads, and the calls it made. */
  function engineOf(globalRank: number) {
    const calls: string[] = [];
    const observers = new Set<StepObserver>();
    const engine = {
      module: new Linear(2, 3),
      device: cpu(),
      worldSize: 2,
      globalRank,
      globalSteps: 0,
      optimizer: new AdamW(new Linear(1, 1).parameters(), { lr: 0.1 }),
      config: { fp16: { enabled: true } },
      parts: {
        watch: {
          share: () => void calls.push('share'),
          add: (stepObserver: StepObserver) => {
            observers.add(stepObserver);
            return () => void observers.delete(stepObserver);
          },
          reportTimes: () => void calls.push('times'),
        },
        stepDecisions: { takeLast: () => void calls.push('last') },
        stage: { partitions: [], frozen: [], slotBytes: 0 },
        state: { bytes: { device: 0, host: 0, disk: 0 } },
      },
    };
    return { engine, calls, observers, watched: engine as never };
  }

  const report: FinishedStep = {
    step: 1,
    samples: 2,
    skipped: 0,
    applied: true,
    loss: 3,
    norm: 4,
    lr: [0.5],
    betas: [],
    lossScale: 8,
    busy: null,
  };

  const eventsIn = (folder: string): Record<string, unknown>[] =>
    readFileSync(join(folder, 'watch', 'events.jsonl'), 'utf8')
      .split('\n')
      .filter((line) => line !== '')
      .map((line) => JSON.parse(line));

  test('shares times and records nothing on ranks other than 0', async () => {
    const { watched, calls, observers } = engineOf(1);
    const folder = join(dir, 'second');
    const run = await watchRun(watched, { dir: folder });
    expect([run.dir, run.url]).toEqual([folder, null]);
    expect([calls, observers.size, existsSync(folder)]).toEqual([['share'], 0, false]);
    run.scalars({ a: 1 });
    await run.close();
    expect(existsSync(folder)).toBe(false);
  });

  test('has a start, its steps, its warnings, and an end', async () => {
    const { engine, watched, calls, observers } = engineOf(0);
    const before = process.listenerCount('warning');
    const run = await watchRun(watched, { dir: join(dir, 'first'), port: null, name: 'one' });
    expect(run.url).toBeNull();
    for (const observer of observers) observer.stepFinished?.(report);
    engine.globalSteps = 1;
    for (const name of ['DsNotice', 'DsWarning']) {
      process.emit('warning', Object.assign(new Error(`a ${name}`), { name }));
    }
    run.scalars({ a: 2 });
    await run.close();
    expect([observers.size, calls]).toEqual([0, ['share', 'last', 'times']]);
    expect(process.listenerCount('warning')).toBe(before);
    const [start, ...rest] = eventsIn(join(dir, 'first'));
    expect(start).toMatchObject({ e: 'start', name: 'one', pid: process.pid });
    expect(start?.about).toEqual({
      model: 'Linear',
      parameters: 9,
      ranks: 2,
      device: 'cpu',
      processor: 'CPU',
      optimizer: 'AdamW',
      version,
      node: process.version,
      host: hostname(),
    });
    expect(start).toMatchObject({ host: hostname(), config: { fp16: { enabled: true } } });
    expect(rest.filter(({ track }) => track === 'train')).toMatchObject([
      { step: 1, values: { loss: 3, grad_norm: 4, loss_scale: 8 } },
    ]);
    expect(rest.filter(({ e }) => e === 'notice')).toMatchObject([
      { level: 'info', message: 'a DsNotice', step: 1 },
      { level: 'warning', message: 'a DsWarning', step: 1 },
    ]);
    expect(rest.at(-1)).toMatchObject({ e: 'end', reason: 'closed' });
  });

  describe('with a page', () => {
    const start = jest.spyOn(ServedPage, 'start');
    afterAll(() => start.mockRestore());
    const close = jest.fn(async () => {});
    const page = { url: 'http://127.0.0.1:1/#key', close } as never;
    const busy = new Error('a busy port');

    async function ports(options: object): Promise<unknown[]> {
      start.mockClear();
      const run = await watchRun(engineOf(0).watched, { dir: join(dir, 'page'), ...options });
      expect(run.url).toBe('http://127.0.0.1:1/#key');
      close.mockClear();
      await run.close();
      expect(close).toHaveBeenCalledTimes(1);
      return start.mock.calls.map(([{ dirs, ...rest }]) => {
        expect(dirs).toEqual([join(dir, 'page')]);
        return rest;
      });
    }

    test('serves the given port, else 6006, else a free one', async () => {
      start.mockResolvedValue(page);
      expect(await ports({ port: 7, host: 'localhost' })).toEqual([{ port: 7, host: 'localhost' }]);
      expect(await ports({ port: 0 })).toEqual([{ port: 0, host: undefined }]);
      expect(await ports({})).toEqual([{ port: 6006, host: undefined }]);
      start.mockRejectedValueOnce(busy);
      expect(await ports({})).toEqual([6006, 0].map((port) => ({ port, host: undefined })));
    });

    test('rejects and closes the log if it cannot be served', async () => {
      const closed = jest.spyOn(EventLog.prototype, 'close');
      start.mockReset().mockRejectedValueOnce(busy);
      const { watched, observers } = engineOf(0);
      const call = watchRun(watched, { dir: join(dir, 'busy'), port: 7 });
      await expect(call).rejects.toBe(busy);
      expect([start.mock.calls.length, closed.mock.calls.length, observers.size]).toEqual([
        1, 1, 0,
      ]);
      closed.mockRestore();
    });
  });

  test('ends once, unless the run continues after its end', async () => {
    const ends = async (name: string, later: number) => {
      const { engine, watched } = engineOf(0);
      const run = await watchRun(watched, { dir: join(dir, name), port: null });
      run.ended('finished');
      engine.globalSteps = later;
      await run.close();
      return eventsIn(join(dir, name)).flatMap(({ e, reason }) => (e === 'end' ? [reason] : []));
    };
    expect(await ends('ended', 0)).toEqual(['finished']);
    expect(await ends('resumed', 1)).toEqual(['finished', 'closed']);
  });

  test.each([-1, 65_536, 1.5, '6006', Number.NaN])('port %p is refused', async (port) => {
    const { watched } = engineOf(0);
    await expect(watchRun(watched, { dir, port: port as number })).rejects.toMatchObject({
      code: 'DS_ARGUMENT',
      op: 'engine.watch port',
      expected: 'a port from 0 to 65535, or null',
    });
  });
});
