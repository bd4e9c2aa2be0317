// Saves beside training: the same bytes as synchronous ones, and no failure is lost.
import { mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { listTags } from '../../lib/checkpoint/index.js';
import { type Engine, initialize, liveTensors, seed } from '../../lib/index.js';
import { cpu } from '../../lib/runtime/device.js';
import {
  type TinyOptions,
  tinyConfig,
  tinyModel,
  trainTiny,
  weightBits,
} from '../e2e/tiny-training.js';
import { quiet } from '../support/quiet.js';

let dir: string;
let engines: Engine[];
beforeEach(() => {
  dir = mkdtempSync(join(tmpdir(), 'ds-async-'));
  engines = [];
});
afterEach(() => {
  for (const engine of engines) engine.destroy();
  rmSync(dir, { recursive: true, force: true });
});

async function start(options: TinyOptions, from = 1234): Promise<Engine> {
  seed(from);
  const config = tinyConfig(options);
  const { engine } = await initialize({ model: tinyModel(options), config, device: 'cpu' });
  engines.push(engine);
  return engine;
}

const resident: TinyOptions = { precision: 'bf16', offload: false };

/** Every file of a checkpoint; the manifest without the time of the save. */
function filesOf(path: string): Record<string, string> {
  const read = (name: string) => {
    const bytes = readFileSync(join(path, name));
    if (name !== 'manifest.json') return bytes.toString('base64');
    return bytes
      .toString()
      .replace(/"savedAt":\d+/, '')
      .replace(/"sha256":"\w+"/, '');
  };
  return Object.fromEntries(readdirSync(path).map((name) => [name, read(name)]));
}

test.each<[string, TinyOptions]>([
  ['resident bf16', resident],
  ['fp32', { precision: 'fp32', offload: false }],
  ['offload', { precision: 'bf16', offload: true }],
  ['speculative offload, fp16', { precision: 'fp16', offload: true, speculative: true }],
])(
  '%s: the bytes are those of a synchronous save, while training goes on',
  async (_name, options) => {
    const engine = await start({ ...options, dropout: 0.1 });
    trainTiny(engine, 0, 3);
    const plain = await engine.saveCheckpoint(dir, { tag: 'plain' });
    const beside = await engine.saveCheckpoint(dir, { tag: 'beside', asynchronous: true });
    expect(await listTags(dir)).toEqual(['plain']);
    for (let step = 3; step < 9; ++step) {
      trainTiny(engine, step, step + 1);
      await new Promise((resolve) => setImmediate(resolve));
    }
    expect(await engine.checkpointDone()).toBe(beside);
    expect(filesOf(beside)).toEqual(filesOf(plain));
    expect(readFileSync(join(dir, 'latest'), 'utf8')).toBe('beside');
    const after = weightBits(engine);
    const resumed = await start({ ...options, dropout: 0.1 }, 99);
    await resumed.loadCheckpoint(dir);
    trainTiny(resumed, 3, 9);
    expect(weightBits(resumed)).toEqual(after);
  },
);

test('the next save waits for the last one; memory is used again and freed at the end', async () => {
  const engine = await start(resident);
  await quiet();
  const before = { buffers: cpu().memory.liveBuffers, tensors: liveTensors() };
  for (let step = 1; step <= 4; ++step) {
    await engine.saveCheckpoint(dir, { tag: `s${step}`, asynchronous: true, keepLast: 2 });
    const done = step === 1 ? [] : [`s${step - 1}`];
    expect(await listTags(dir)).toEqual(expect.arrayContaining(done));
  }
  await engine.saveCheckpoint(dir, { tag: 's5', keepLast: 2 });
  expect(await listTags(dir)).toEqual(['s4', 's5']);
  expect(liveTensors()).toBe(before.tensors);
  expect(cpu().memory.liveBuffers).toBe(before.buffers + 1);
  expect(await engine.checkpointDone()).toBeNull();
});

describe('a failure', () => {
  /** `latest` is a folder that cannot be replaced: the commit fails. */
  async function failing(): Promise<Engine> {
    const engine = await start(resident);
    mkdirSync(join(dir, 'latest', 'full'), { recursive: true });
    await engine.saveCheckpoint(dir, { tag: 'a', asynchronous: true });
    return engine;
  }
  const failure = expect.objectContaining({
    code: 'DS_IO',
    message: expect.stringMatching(/latest/),
  });

  test('comes with checkpointDone, once', async () => {
    const engine = await failing();
    await expect(engine.checkpointDone()).rejects.toEqual(failure);
    expect(await engine.checkpointDone()).toBeNull();
    await engine.saveCheckpoint(dir, { tag: 'b', saveLatest: false });
  });

  test('comes with the next save', async () => {
    const engine = await failing();
    await expect(engine.saveCheckpoint(join(dir, 'other'))).rejects.toEqual(failure);
    await engine.saveCheckpoint(join(dir, 'other'));
  });

  test('comes with the next load', async () => {
    const engine = await failing();
    await expect(engine.loadCheckpoint(dir, { tag: 'a' })).rejects.toEqual(failure);
  });

  test('is a warning when the engine is destroyed first', async () => {
    const engine = await failing();
    const warn = jest.spyOn(process, 'emitWarning').mockImplementation(() => {});
    engines.pop();
    engine.destroy();
    while (warn.mock.calls.length === 0) await new Promise((resolve) => setTimeout(resolve, 5));
    const [text, options] = warn.mock.calls[0] as unknown as [string, object];
    warn.mockRestore();
    expect(text).toMatch(/not saved.*latest/);
    expect(options).toMatchObject({ code: 'DS_CHECKPOINT' });
  });
});

test('a save under way is finished after destroy()', async () => {
  const engine = await start(resident);
  trainTiny(engine, 0, 2);
  const bits = weightBits(engine);
  await engine.saveCheckpoint(dir, { asynchronous: true });
  engines.pop();
  engine.destroy();
  await engine.checkpointDone();
  const resumed = await start(resident, 99);
  await resumed.loadCheckpoint(dir);
  expect(weightBits(resumed)).toEqual(bits);
});
