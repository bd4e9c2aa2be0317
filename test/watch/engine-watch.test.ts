// engine.watch(): what a training loop records and serves.
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { initialize, nn, Tensor } from '../../lib/index.js';
import { decodeEvent, eventsPath, type RunEvent } from '../../lib/watch/events.js';
import { readPage, snippetsOf } from '../docs/snippets.js';

let dir: string;
beforeEach(() => {
  dir = mkdtempSync(join(tmpdir(), 'ds-watch-'));
});
afterEach(() => rmSync(dir, { recursive: true }));

const adamW = { optimizer: { type: 'AdamW', params: { lr: 1e-3 } } } as const;
const config = { train_micro_batch_size_per_gpu: 4, ...adamW, gradient_clipping: 1 } as const;

const events = (): RunEvent[] =>
  readFileSync(eventsPath(dir), 'utf8')
    .split('\n')
    .map(decodeEvent)
    .filter((event) => event !== null);

const rows = (track: string) =>
  events().filter((event) => event.e === 'row' && event.track === track);

class Line extends nn.Module {
  readonly layer = new nn.Linear(3, 1);
  override forward(x: Tensor): Tensor {
    const y = this.layer.call(x);
    return y.mul(y).mean();
  }
}

async function open() {
  return initialize({ model: new Line(), config, device: 'cpu' });
}

function train(engine: Awaited<ReturnType<typeof open>>['engine'], steps: number): void {
  const x = Tensor.from([
    [1, 2, 3],
    [2, 3, 4],
    [3, 4, 5],
    [4, 5, 6],
  ]);
  for (let step = 0; step < steps; step++) {
    engine.backward(engine.forward(x));
    engine.step();
  }
}

test('a loop records numbers, phases, memory, texts and its end', async () => {
  const { engine } = await open();
  const watch = await engine.watch({ dir, port: null, name: 'line' });
  expect(watch.url).toBeNull();
  train(engine, 5);
  engine.synchronize();
  watch.scalars({ temperature: 36.6 });
  watch.evaluated({ loss: 0.5 });
  watch.text({ prompt: 'a', text: 'b' });
  watch.log('half done');
  watch.notice('odd labels', 'warning');
  engine.destroy();
  await watch.close();
  const start = events()[0];
  expect(start).toMatchObject({ e: 'start', name: 'line', about: { model: 'Line', ranks: 1 } });
  expect(start).toMatchObject({ config: { gradient_clipping: 1 }, pid: process.pid });
  expect(rows('train').map((row) => (row as { step: number }).step)).toEqual([1, 2, 3, 4, 5]);
  expect(rows('train')[4]).toMatchObject({
    values: { lr: 1e-3, loss: expect.any(Number), grad_norm: expect.any(Number) },
  });
  expect(rows('memory')[0]).toMatchObject({ values: { device_weights: expect.any(Number) } });
  expect(rows('phases')[0]).toMatchObject({ values: { forward: expect.any(Number), reduce: 0 } });
  expect(rows('own')[0]).toMatchObject({ step: 5, values: { temperature: 36.6 } });
  expect(rows('eval')[0]).toMatchObject({ values: { loss: 0.5 } });
  const kinds = events()
    .map(({ e }) => e)
    .filter((kind) => kind !== 'row');
  expect(kinds.slice(-4)).toEqual(['text', 'log', 'notice', 'end']);
});

test('the program of docs/watching.md runs as it is written', async () => {
  const page = 'docs/watching.md';
  const [snippet] = snippetsOf(page, readPage(page), ['ts']);
  const config = join(dir, 'ds_config.json');
  writeFileSync(config, JSON.stringify({ train_micro_batch_size_per_gpu: 4, ...adamW }));
  const body = (snippet?.code ?? '')
    .replace(/^import .*$/m, '')
    .replace("'ds_config.json'", 'config')
    .replace("dir: 'runs/first'", 'dir, port: 0');
  const names = ['initialize', 'model', 'batches', 'config', 'dir', 'console'];
  const AsyncFunction = (async () => {}).constructor as FunctionConstructor;
  const log = jest.fn();
  const batches = [1, 2, 3].map((value) => Tensor.from([[value, value, value]]));
  const own: typeof initialize = ((options: object) =>
    initialize({ ...options, device: 'cpu' } as never)) as never;
  const program = new AsyncFunction(...names, body);
  await program(own, new Line(), batches, config, dir, { log });
  expect(log.mock.calls[0]?.[0]).toMatch(/^http:\/\/127\.0\.0\.1:\d+\/#[\w-]{43}$/);
  expect(rows('train')).toHaveLength(3);
  expect(rows('eval')).toMatchObject([{ step: 3, values: { loss: 2.1 } }]);
});

test('the page is served by a thread, and ends with the engine', async () => {
  const { engine } = await open();
  const watch = await engine.watch({ dir, port: 0 });
  const { origin, hash } = new URL(watch.url as string);
  const headers = { authorization: `Bearer ${hash.slice(1)}` };
  train(engine, 3);
  engine.synchronize();
  await watch.flush();
  const get = async (route: string): Promise<Record<string, unknown>> =>
    (await (await fetch(`${origin}/api/${route}`, { headers })).json()) as Record<string, unknown>;
  expect(await get('runs')).toMatchObject({ runs: [{ step: 3, state: 'running' }] });
  expect(await get('series?run=0')).toMatchObject({ train: { step: [1, 2, 3] } });
  engine.destroy();
  await watch.close();
  await expect(fetch(origin)).rejects.toThrow();
});

test('a port in use and wrong options are errors that name them', async () => {
  const other = createServer();
  await new Promise<void>((resolve) => other.listen(0, '127.0.0.1', resolve));
  const { port } = other.address() as AddressInfo;
  const { engine } = await open();
  await expect(engine.watch({ dir, port })).rejects.toMatchObject({
    code: 'DS_IO',
    op: `watch 127.0.0.1:${port}`,
    got: expect.stringContaining('EADDRINUSE'),
  });
  await expect(engine.watch({ dir, port: 70_000 })).rejects.toMatchObject({ code: 'DS_ARGUMENT' });
  await expect(engine.watch({ folder: dir } as never)).rejects.toThrow(/"folder"/);
  train(engine, 1); // Training goes on without a page.
  engine.destroy();
  await new Promise((resolve) => other.close(resolve));
});
