// Tests weights that stay in their files: the time of the read, the dtype, and the memory.
import { execFileSync } from 'node:child_process';
import * as fs from 'node:fs';
import { mkdtempSync, readdirSync, readlinkSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { initialize, nn, noGrad, seed, Tensor, zeros } from '../../lib/index.js';
import type { HostPeaks } from './stored-weights-process.js';

const { GPT2, Llama, fromPretrained } = nn.models;

let dir: string;
beforeEach(() => {
  dir = mkdtempSync(join(tmpdir(), 'ds-stored-'));
});
afterEach(() => rmSync(dir, { recursive: true, force: true }));

const sizes = { vocabSize: 31, maxSeq: 16, layers: 2, heads: 4, channels: 16, hidden: 20 };
const tiny = () => new Llama({ ...sizes, kvHeads: 2 });
const gpt2 = () => new GPT2({ vocabSize: 31, maxSeq: 8, layers: 2, heads: 2, channels: 8 });

async function saveModel(
  model: nn.Module,
  options: nn.SaveWeightsOptions = {},
  name = 'model',
): Promise<string> {
  await nn.saveWeights(model, join(dir, name), options);
  return join(dir, name);
}

const valuesOf = (model: nn.Module): [string, number[]][] =>
  Array.from(model.namedParameters(), ([name, parameter]) => [name, parameter.toArray()]);

const row = (device = 'cpu'): Tensor =>
  Tensor.from(Int32Array.from([3, 1, 4, 1, 5, 9]), { shape: [1, 6], device });

/** Files of the folder that this process has open. */
function openFiles(): number {
  const links = readdirSync('/proc/self/fd').map((fd) => {
    try {
      return readlinkSync(`/proc/self/fd/${fd}`);
    } catch {
      return ''; // The descriptor of the listing itself.
    }
  });
  return links.filter((path) => path.startsWith(dir)).length;
}

test('weights load on first use, and the files are closed after the last one', async () => {
  const model = tiny();
  const home = await saveModel(model, { maxShardBytes: 2000 });
  expect(readdirSync(home).length).toBeGreaterThan(4);
  const read = await fromPretrained(home);
  expect(read.parameters().some(({ isMaterialized }) => isMaterialized)).toBe(false);
  expect(openFiles()).toBeGreaterThan(2);
  expect(valuesOf(read)).toEqual(valuesOf(model));
  while (openFiles() > 0) await new Promise((done) => setTimeout(done, 5));
});

describe('the dtype', () => {
  test.each(['bf16', 'fp16', 'fp32'] as const)('is that of the files: %s', async (dtype) => {
    const model = tiny();
    const read = await fromPretrained(await saveModel(model, { dtype }));
    const own = dtype.replace('fp', 'f') as 'bf16' | 'f16' | 'f32';
    expect(new Set(read.parameters().map((parameter) => parameter.dtype))).toEqual(new Set([own]));
    expect(valuesOf(read)).toEqual(valuesOf(model.to(own)));
    expect(read.parameters()[0]?.dtype).toBe(own);
  });

  test('is the requested dtype', async () => {
    const model = tiny();
    const home = await saveModel(model, { dtype: 'bf16' });
    const read = await fromPretrained(home, { dtype: 'f32' });
    expect(valuesOf(read)).toEqual(valuesOf(model.to('bf16').to('f32')));
    const logits = (model: nn.models.CausalLM) =>
      noGrad(() => model.call(row()).contiguous().toArray());
    expect(logits(read)).toEqual(logits(model));
    await expect(fromPretrained(home, { dtype: 'i32' as never })).rejects.toThrow(
      expect.objectContaining({ code: 'DS_ARGUMENT', message: expect.stringMatching(/"bf16"/) }),
    );
  });

  test('of files with several is that of config.json', async () => {
    const model = tiny();
    model.model.norm.weight.moveTo(model.model.norm.weight.device, 'bf16');
    const home = await saveModel(model);
    const read = await fromPretrained(home);
    expect(new Set(read.parameters().map((parameter) => parameter.dtype))).toEqual(
      new Set(['f32']),
    );
  });

  test('values beyond f16 are refused during the read', async () => {
    const model = tiny();
    model.model.norm.weight.initialize(nn.init.constant(1e5));
    const read = await Llama.fromPretrained(await saveModel(model), { dtype: 'f16' });
    expect(() => read.model.norm.weight.toArray()).toThrow(/model\.norm\.weight.*finite/);
    expect(read.model.embed_tokens.weight.toArray()).toHaveLength(31 * 16);
  });
});

test('reads any range of a parameter, also a transposed one', async () => {
  const model = gpt2();
  const read = await fromPretrained(await saveModel(model));
  const found = new Map(read.namedParameters());
  for (const [name, parameter] of model.namedParameters()) {
    const { stored } = found.get(name) as nn.Parameter;
    const from = Math.floor(parameter.numel / 3);
    const out = zeros([parameter.numel - from - 1]);
    stored?.read(out, from);
    expect(out.toArray()).toEqual(parameter.toArray().slice(from, -1));
  }
});

test('files changed during the read are refused, deleted files are still read', async () => {
  const model = tiny();
  const home = await saveModel(model);
  const [first, second] = [await fromPretrained(home), await fromPretrained(home)];
  const file = join(home, 'model.safetensors');
  const written = fs.readFileSync(file);
  rmSync(file);
  expect(valuesOf(first)).toEqual(valuesOf(model));
  writeFileSync(file, written);
  const third = await fromPretrained(home);
  writeFileSync(file, written.fill(0, 2000));
  // One second later, because the clocks of file systems are coarse.
  fs.utimesSync(file, new Date(), new Date(Date.now() + 1000));
  expect(() => valuesOf(third)).toThrow(
    expect.objectContaining({ code: 'DS_IO', message: expect.stringMatching(/written|change/) }),
  );
  expect(valuesOf(second)).toEqual(valuesOf(model));
});

test('an engine starts from them, in the dtype of its configuration', async () => {
  seed(2);
  const model = tiny();
  const home = await saveModel(model, { dtype: 'bf16' });
  const losses: number[][] = [];
  for (const one of [model.to('bf16'), await fromPretrained(home)]) {
    const { engine } = await initialize({
      model: one,
      config: { train_batch_size: 1, optimizer: { type: 'AdamW', params: { lr: 0.01 } } },
      device: 'cpu',
    });
    losses.push(
      [0, 1, 2].map(() => {
        const loss = engine.forward(row(), row()) as Tensor;
        engine.backward(loss);
        engine.step();
        return loss.item();
      }),
    );
    engine.destroy();
  }
  expect(losses[1]).toEqual(losses[0]);
});

/** The report of a process that reads and copies `folder`. */
function measurePeaks(warm: string, folder: string): HostPeaks {
  const runner = join(__dirname, '..', 'support', 'run-typescript.cjs');
  const program = join(__dirname, 'stored-weights-process.ts');
  const words = ['-r', runner, program, warm, folder, `${folder}-copy`];
  return JSON.parse(execFileSync(process.execPath, words, { encoding: 'utf8' })) as HostPeaks;
}

test('a folder of bf16 weights takes little host memory to load and to copy', async () => {
  // Large enough for the heap of JavaScript, which grows by some MB at any time, to be a small
  // part.
  const big = { vocabSize: 2000, maxSeq: 16, layers: 12, heads: 8, channels: 512, hidden: 2048 };
  const from = await saveModel(new Llama(big), { dtype: 'bf16', maxShardBytes: 10e6 }, 'big');
  const warm = await saveModel(tiny(), { dtype: 'bf16' }, 'warm');
  // The first process compiles the sources, which takes more memory than the measured part.
  measurePeaks(warm, warm);
  const peaks = measurePeaks(warm, from);
  expect(peaks.total).toBeGreaterThan(100e6);
  expect(peaks.loaded).toBeLessThan(0.1 * peaks.total);
  expect(peaks.saved).toBeLessThan(0.35 * peaks.total);
  expect(peaks.seen).toBeGreaterThan(0.9 * peaks.total);
  const bytesOf = (folder: string) =>
    readdirSync(folder)
      .filter((name) => name.endsWith('.safetensors'))
      .map((name) => [name, statSync(join(folder, name)).size]);
  expect(bytesOf(`${from}-copy`)).toEqual(bytesOf(from));
});
