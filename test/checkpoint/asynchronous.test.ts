// Tests that asynchronous saves write the same bytes as synchronous ones, and that every failure is
// reported.
import { spawn } from 'node:child_process';
import {
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  writeFileSync,
} from 'node:fs';
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

const HOOK = join(__dirname, '..', 'support', 'run-typescript.cjs');

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
  '%s: an asynchronous save has the bytes of a synchronous save while training continues',
  async (_name, options) => {
    const engine = await start({ ...options, dropout: 0.1 });
    trainTiny(engine, 0, 3);
    const plain = await engine.saveCheckpoint(dir, { tag: 'plain' });
    const beside = await engine.saveCheckpoint(dir, { tag: 'beside', asynchronous: true });
    for (let step = 3; step < 9; ++step) {
      trainTiny(engine, step, step + 1);
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

test('a save waits for the previous save, reuses its memory, and frees it at the end', async () => {
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
  /** A folder of the user appears at the path of the checkpoint, so the commit fails. */
  async function failingEngine(): Promise<Engine> {
    const engine = await start(resident);
    for (let n = 0; ; ++n) {
      const path = await engine.saveCheckpoint(dir, { tag: `a${n}`, asynchronous: true });
      try {
        mkdirSync(path);
        return engine;
      } catch {
        await engine.checkpointDone(); // The checkpoint was faster.
      }
    }
  }
  const failure = expect.objectContaining({
    code: 'DS_CHECKPOINT',
    message: expect.stringMatching(/a\d+: .*got an empty folder/),
  });

  /** The first warning about a save. */
  async function nextWarning(warn: jest.SpyInstance): Promise<[string, object]> {
    while (warn.mock.calls.length === 0) await new Promise((resolve) => setTimeout(resolve, 5));
    return warn.mock.calls[0] as [string, object];
  }

  let warn: jest.SpyInstance;
  beforeEach(() => {
    warn = jest.spyOn(process, 'emitWarning').mockImplementation(() => {});
  });
  afterEach(() => warn.mockRestore());

  test('rejects checkpointDone once', async () => {
    const engine = await failingEngine();
    await expect(engine.checkpointDone()).rejects.toEqual(failure);
    expect(await engine.checkpointDone()).toBeNull();
    await engine.saveCheckpoint(dir, { tag: 'b', saveLatest: false });
  });

  test('rejects the next save', async () => {
    const engine = await failingEngine();
    await expect(engine.saveCheckpoint(join(dir, 'other'))).rejects.toEqual(failure);
    await engine.saveCheckpoint(join(dir, 'other'));
  });

  test('rejects the next load', async () => {
    const engine = await failingEngine();
    await expect(engine.loadCheckpoint(dir, { tag: 'a' })).rejects.toEqual(failure);
  });

  test('emits a warning, even if the engine is destroyed first', async () => {
    const engine = await failingEngine();
    engines.pop();
    engine.destroy();
    const [text, options] = await nextWarning(warn);
    expect(text).toMatch(/not saved.*an empty folder/);
    expect(options).toMatchObject({ code: 'DS_CHECKPOINT' });
  });

  test('before the save starts, rejects the call itself and leaves no files', async () => {
    const engine = await start(resident);
    writeFileSync(join(dir, 'a'), 'mine');
    const saving = engine.saveCheckpoint(dir, { tag: 'a', asynchronous: true });
    await expect(saving).rejects.toMatchObject({ message: expect.stringMatching(/got a file/) });
    expect(await engine.checkpointDone()).toBeNull();
    expect(readdirSync(dir)).toEqual(['a']);
  });
});

describe('a program that blocks the event loop', () => {
  /** Blocks this thread until the path is there. */
  function spinUntil(path: string): void {
    const deadline = Date.now() + 60_000;
    while (!existsSync(path)) if (Date.now() > deadline) throw new Error(`${path} never came`);
  }

  test.each<[string, TinyOptions]>([
    ['resident bf16', resident],
    ['offload', { precision: 'bf16', offload: true }],
  ])('%s: the save completes during it, with the state of the call', async (_name, options) => {
    const engine = await start(options);
    trainTiny(engine, 0, 2);
    const bits = weightBits(engine);
    const saving = engine.saveCheckpoint(dir, { asynchronous: true });
    trainTiny(engine, 2, 5);
    spinUntil(join(dir, 'latest'));
    trainTiny(engine, 5, 6);
    expect(await saving).toBe(join(dir, 'global_step2'));
    expect(await engine.checkpointDone()).toBe(join(dir, 'global_step2'));
    const resumed = await start(options, 99);
    await resumed.loadCheckpoint(dir);
    expect(resumed.globalSteps).toBe(2);
    expect(weightBits(resumed)).toEqual(bits);
  });

  test('a second save without await is refused, and does not save a later step', async () => {
    const engine = await start(resident);
    const first = engine.saveCheckpoint(dir, { tag: 'a', asynchronous: true });
    const second = engine.saveCheckpoint(dir, { tag: 'b', asynchronous: true });
    trainTiny(engine, 0, 1);
    const refusal = { code: 'DS_CHECKPOINT', hint: expect.stringMatching(/Await saveCheckpoint/) };
    await Promise.all([first, expect(second).rejects.toMatchObject(refusal)]);
    expect(await listTags(dir)).toEqual(['a']);
  });
});

describe('the end of the process', () => {
  /** The state that remains after a program starts a save and then does `end`. */
  async function after(end: string): Promise<[number | null, string]> {
    const args = ['-r', HOOK, join(__dirname, 'exit-process.ts'), dir, end];
    const env = { ...process.env, DS_NUM_THREADS: '1' };
    const child = spawn(process.execPath, args, { env, stdio: ['ignore', 'ignore', 'pipe'] });
    let errors = '';
    child.stderr.on('data', (text) => {
      errors += text;
    });
    const code = await new Promise<number | null>((resolve) => child.once('close', resolve));
    return [code, errors];
  }

  test.each([
    ['returns', 0, /^$/],
    ['exits', 3, /^$/],
    ['throws', 1, /Error: of the program/],
    ['destroys', 0, /^$/],
  ])('if a program %s first, the save is completed', async (end, code, errors) => {
    expect(await after(end)).toEqual([code, expect.stringMatching(errors)]);
    expect(readdirSync(dir).sort()).toEqual(['latest', 't']);
    const engine = await start(resident);
    await engine.loadCheckpoint(dir);
    expect(engine.globalSteps).toBe(2);
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

describe('a call without await before destroy()', () => {
  const homes: [string, TinyOptions][] = [
    ['on the device', resident],
    ['in host memory', { precision: 'bf16', offload: true, speculative: true }],
    ['on a disk', { precision: 'bf16', offload: true, nvme: tmpdir() }],
  ];
  const calls: [op: string, call: (engine: Engine) => Promise<unknown>][] = [
    ['saveCheckpoint', (engine) => engine.saveCheckpoint(dir, { tag: 'second' })],
    ['loadCheckpoint', (engine) => engine.loadCheckpoint(dir, { tag: 'first' })],
    // It copies the state after the previous save is written.
    [
      'saveCheckpoint',
      (engine) => engine.saveCheckpoint(dir, { tag: 'second', asynchronous: true }),
    ],
  ];

  test.each(homes)('makes destroy() throw, and saves nothing: state %s', async (_, options) => {
    for (const [op, call] of calls) {
      const engine = await start(options);
      engines.pop();
      trainTiny(engine, 0, 1);
      await engine.saveCheckpoint(dir, { tag: 'first' });
      await engine.saveCheckpoint(dir, { tag: 'beside', asynchronous: true });
      const running = call(engine);
      engine.destroy();
      await expect(running).rejects.toMatchObject({
        op,
        got: 'engine.destroy() during the call',
        hint: `Await ${op}() before engine.destroy().`,
      });
      await engine.checkpointDone();
      expect([...(await listTags(dir))].sort()).toEqual(['beside', 'first']);
      rmSync(dir, { recursive: true });
      mkdirSync(dir);
    }
  });
});
