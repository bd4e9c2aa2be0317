// Loads of corrupted checkpoints, weights and adapters. After a failed load, weights, optimizer,
// schedule and layers are bit for bit as before. DS_FUZZ_CASES sets the number of corruptions.

import { createHash } from 'node:crypto';
import {
  cpSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  statSync,
  unlinkSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { createContent } from '../../lib/engine/saving/snapshot.js';
import { DsError } from '../../lib/errors.js';
import { type Engine, initialize, nn, peft, seed, Tensor } from '../../lib/index.js';
import { crc32c } from '../../lib/monitor/tensorboard.js';
import { below } from '../support/random.js';
import { Sorter } from './sorter-model.js';

const CASES = Number(process.env.DS_FUZZ_CASES ?? 40);

let root: string;
const engines: Engine[] = [];
beforeEach(() => {
  root = mkdtempSync(join(tmpdir(), 'ds-failed-loads-'));
});
afterEach(() => {
  for (const engine of engines.splice(0)) engine.destroy();
  rmSync(root, { recursive: true, force: true });
});

const pick = <T>(values: readonly T[]): T => values[below(values.length)] as T;

/** Regular files below a folder. */
function filesIn(folder: string): string[] {
  const all = readdirSync(folder, { recursive: true }) as string[];
  return all.map((name) => join(folder, name)).filter((path) => statSync(path).isFile());
}

/** Rewrites a safetensors file: `change` gets its header and its data. */
function rewrite(path: string, change: (header: Header, data: Buffer) => void): void {
  const bytes = readFileSync(path);
  const length = Number(bytes.readBigUInt64LE());
  const header = JSON.parse(bytes.toString('utf8', 8, 8 + length)) as Header;
  const data = Buffer.from(bytes.subarray(8 + length));
  change(header, data);
  const text = Buffer.from(JSON.stringify(header));
  const size = Buffer.alloc(8);
  size.writeBigUInt64LE(BigInt(text.length));
  writeFileSync(path, Buffer.concat([size, text, data]));
}

type Header = Record<string, { dtype: string; shape: number[]; data_offsets: [number, number] }>;

function tensorIn(header: Header): string {
  return pick(Object.keys(header).filter((name) => name !== '__metadata__'));
}

/** Changes shape, dtype, name or a value of a tensor. f16 cannot hold the new values. */
function changeTensor(path: string): string {
  const kind = pick(['shape', 'dtype', 'name', 'value', 'value', 'missing']);
  rewrite(path, (header, data) => {
    const name = tensorIn(header);
    const tensor = header[name] as Header[string];
    if (kind === 'shape') tensor.shape = pick([[...tensor.shape, 1], tensor.shape.slice(1), [1e9]]);
    else if (kind === 'dtype') {
      tensor.dtype = pick(tensor.dtype === 'F32' ? ['I32', 'U32', 'BF16'] : ['I16', 'F16', 'U8']);
    } else if (kind === 'name') {
      header[`${name}x`] = tensor;
      delete header[name];
    } else if (kind === 'missing') delete header[name];
    else data.writeFloatLE(pick([1e30, Number.NaN, 7e4]), tensor.data_offsets[0]);
  });
  return `${kind} of a tensor`;
}

/** Gives the changed files of a checkpoint the right checksums. */
function reseal(folder: string): void {
  const path = filesIn(folder).find((name) => name.endsWith('manifest.json'));
  if (path === undefined) return;
  const { sha256: _, ...manifest } = JSON.parse(readFileSync(path, 'utf8'));
  for (const file of manifest.files) {
    const bytes = readFileSync(join(path, '..', file.name));
    Object.assign(file, { bytes: bytes.length, crc32c: crc32c(bytes) });
  }
  const body = JSON.stringify(manifest).slice(0, -1);
  const sha256 = createHash('sha256').update(body).digest('hex');
  writeFileSync(path, `${body},\n"sha256":"${sha256}"}\n`);
}

/** Corrupts a folder in one way, and names it. */
function corrupt(folder: string): string {
  const files = filesIn(folder);
  const path = pick(files);
  const tensors = files.filter((name) => name.endsWith('.safetensors'));
  const bytes = readFileSync(path);
  const kind = below(6);
  if (kind === 0) writeFileSync(path, bytes.subarray(0, below(bytes.length)));
  else if (kind === 1) unlinkSync(path);
  else if (kind === 2) writeFileSync(path, readFileSync(pick(files)));
  else if (kind === 3) {
    for (let i = 0; i <= below(4); ++i) bytes[below(bytes.length)] = below(256);
    writeFileSync(path, bytes);
  } else if (kind === 4 && path.endsWith('.json')) {
    writeFileSync(
      path,
      bytes
        .toString()
        .replace(/(?<=: ?)(\d+|true|"\w+")/, pick(['-1', '"x"', '1e300', 'null', '{}'])),
    );
  } else {
    const label = changeTensor(pick(tensors));
    if (below(2)) reseal(folder);
    return label;
  }
  return `${['truncated', 'missing', 'swapped', 'flipped', 'edited'][kind]} ${path.slice(folder.length + 1)}`;
}

/**
 * Loads `CASES` corrupted copies. Returns the number of failed loads. Asserts that `stateOf` is
 * unchanged after each.
 */
async function failures<State>(
  fullText: string,
  load: (folder: string) => Promise<unknown>,
  { stateOf, back }: { stateOf: () => State; back: () => Promise<unknown> },
): Promise<number> {
  let count = 0;
  let before = stateOf();
  for (let i = 0; i < CASES; ++i) {
    const folder = join(root, `case-${i}`);
    cpSync(fullText, folder, { recursive: true });
    const label = corrupt(folder);
    try {
      await load(folder);
      await back();
      before = stateOf();
    } catch (error) {
      if (!(error instanceof DsError)) throw new Error(`${label}: ${(error as Error).stack}`);
      count++;
      expect([label, stateOf()]).toEqual([label, before]);
    }
    rmSync(folder, { recursive: true });
  }
  return count;
}

/** A model in training, after some steps of AdamW with a schedule. */
async function sorterEngine(from: number, steps: number, more: object): Promise<Engine> {
  seed(from);
  const config = {
    train_micro_batch_size_per_gpu: 1,
    optimizer: { type: 'AdamW', params: { lr: 1e-2 } },
    scheduler: { type: 'WarmupLR', params: { warmup_num_steps: 10 } },
    ...more,
  } as const;
  const { engine } = await initialize({ model: new Sorter(), config, device: 'cpu' });
  engines.push(engine);
  const words = Tensor.from(Int32Array.from([3, 0, 10]));
  for (let step = 0; step < steps; ++step) {
    engine.backward(engine.forward<Tensor>(words));
    engine.step();
  }
  engine.synchronize();
  words.dispose();
  return engine;
}

/** The content of a checkpoint of the engine. */
function stateOfEngine(engine: Engine): unknown {
  const { model, optimizer, state, rankState } = createContent(engine, { clientState: {} });
  const values = [...model, ...optimizer].map(({ name, tensor }) => {
    const all = Buffer.from((tensor as Tensor).toRaw().slice().buffer).toString('base64');
    (tensor as Tensor).release();
    return [name, all];
  });
  return JSON.parse(JSON.stringify({ values, state, rankState }));
}

test.each([
  ['f32', {}],
  ['bf16', { bf16: { enabled: true } }],
  ['f16', { fp16: { enabled: true } }],
])('engine.loadCheckpoint in %s', async (_name, more) => {
  const [source, engine] = [await sorterEngine(1, 3, more), await sorterEngine(2, 1, more)];
  await source.saveCheckpoint(join(root, 'theirs'));
  await engine.saveCheckpoint(join(root, 'own'));
  const count = await failures(join(root, 'theirs'), (folder) => engine.loadCheckpoint(folder), {
    stateOf: () => stateOfEngine(engine),
    back: () => engine.loadCheckpoint(join(root, 'own')),
  });
  expect(count).toBeGreaterThan(CASES / 4);
});

/** The names, kinds and bits of all tensors of a module, and which are trained. */
function stateOfModule(module: nn.Module): unknown[] {
  return Object.entries(module.stateDict()).map(([name, tensor]) => {
    const raw = tensor.toRaw();
    const bits = Buffer.from(raw.buffer, raw.byteOffset, raw.byteLength).toString('base64');
    const trained = tensor instanceof nn.Parameter && tensor.requiresGrad;
    return [name, tensor.dtype, tensor.shape.join(), trained, bits];
  });
}

test.each(['f32', 'bf16', 'f16'] as const)('nn.loadWeights into %s', async (dtype) => {
  seed(1);
  const source = new Sorter();
  await nn.saveWeights(source, join(root, 'theirs'));
  seed(2);
  const module = new Sorter();
  await nn.saveWeights(module, join(root, 'own'));
  module.to(dtype);
  const count = await failures(join(root, 'theirs'), (folder) => nn.loadWeights(module, folder), {
    stateOf: () => stateOfModule(module),
    back: () => nn.loadWeights(module, join(root, 'own')),
  });
  expect(count).toBeGreaterThan(CASES / 4);
});

const SIZES = { vocabSize: 31, maxSeq: 8, layers: 2, heads: 2, channels: 8, dropout: 0 };
const LORA = { r: 2, targetModules: ['c_attn', 'c_fc'] };

test.each([false, true])('peft.loadAdapter, into adapters: %p', async (hasAdapters) => {
  seed(1);
  const source = new nn.models.GPT2(SIZES);
  peft.addLora(source, LORA);
  await peft.saveAdapter(source, join(root, 'theirs'));
  seed(2);
  let model = new nn.models.GPT2(SIZES);
  if (hasAdapters) peft.addLora(model, LORA);
  stateOfModule(model);
  const count = await failures(join(root, 'theirs'), (folder) => peft.loadAdapter(model, folder), {
    stateOf: () => stateOfModule(model),
    back: async () => {
      seed(2);
      model = new nn.models.GPT2(SIZES);
      if (hasAdapters) peft.addLora(model, LORA);
    },
  });
  expect(count).toBeGreaterThan(CASES / 4);
});
