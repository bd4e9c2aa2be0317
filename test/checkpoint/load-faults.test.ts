// Fails every file call of a load, once or permanently: the error names the path, and the next load
// succeeds.
import * as files from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { consolidate } from '../../lib/checkpoint/index.js';
import { createContent } from '../../lib/engine/saving/snapshot.js';
import { type Engine, initialize, nn, seed, Tensor } from '../../lib/index.js';
import {
  callbackCalls,
  everyFault,
  type Fault,
  nativeCalls,
  promisedCalls,
} from './failing-calls.js';
import { tinyEngine } from './partitioned-engine.js';
import { Sorter } from './sorter-model.js';

const CALLS = [
  ...promisedCalls('readdir', 'lstat', 'stat'),
  ...callbackCalls('open', 'fstat', 'read', 'close'),
  ...nativeCalls('readFile', 'checksumFile'),
];
const BOTH = [{ forGood: false }, { forGood: true }];

let root: string;
let engines: Engine[];
beforeEach(async () => {
  root = await files.mkdtemp(join(tmpdir(), 'ds-load-faults-'));
  engines = [];
});
afterEach(async () => {
  for (const engine of engines) engine.destroy();
  await files.rm(root, { recursive: true, force: true });
});

/** An error names the path, and does not claim that the checkpoint is missing. */
function requirePlace({ place, error }: Fault): void {
  if (error) expect([place, error.op]).toEqual([place, expect.stringContaining(root)]);
  if (error) expect([place, error.got]).not.toEqual([place, expect.stringMatching(/no such|tags/)]);
}

async function sorterEngine(from: number, steps: number): Promise<Engine> {
  seed(from);
  const config = { train_micro_batch_size_per_gpu: 1, optimizer: { type: 'AdamW' } } as const;
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

/** The whole content of a checkpoint of the engine. */
function stateOf(engine: Engine): unknown {
  const { model, optimizer, state, rankState } = createContent(engine, { clientState: {} });
  const values = [...model, ...optimizer].map(({ name, tensor }) => {
    const all = (tensor as Tensor).toArray();
    (tensor as Tensor).release();
    return [name, all];
  });
  return { values, state, rankState };
}

/**
 * Verified tensors are being copied into the engine: a failure leaves it undefined, as
 * restoreEngine documents.
 */
const isLate = ({ call }: Fault) => ['read', 'readFile', 'fstat'].includes(call);

test.each(BOTH)('loadCheckpoint: the engine as it was, or as it was saved (%j)', async (mode) => {
  const [source, engine] = [await sorterEngine(1, 3), await sorterEngine(2, 1)];
  await source.saveCheckpoint(join(root, 'theirs'), { tag: 't' });
  await engine.saveCheckpoint(join(root, 'own'));
  const [saved, own] = [stateOf(source), stateOf(engine)];
  await engine.loadCheckpoint(join(root, 'theirs'));
  const loaded = stateOf(engine);
  expect(loaded).toEqual(saved);
  await engine.loadCheckpoint(join(root, 'own'));
  const before = stateOf(engine);
  expect(before).toEqual(own);
  const places = await everyFault(
    CALLS,
    () => engine.loadCheckpoint(join(root, 'theirs')),
    async (fault) => {
      requirePlace(fault);
      const after = stateOf(engine);
      if (!fault.error) expect([fault.place, after]).toEqual([fault.place, loaded]);
      else if (!isLate(fault)) expect([fault.place, after]).toEqual([fault.place, before]);
      await engine.loadCheckpoint(join(root, 'own'));
      expect([fault.place, stateOf(engine)]).toEqual([fault.place, before]);
    },
    mode,
  );
  expect(places).toBeGreaterThan(20);
});

test.each(BOTH)('nn.loadWeights: all, or an error and all the next time (%j)', async (mode) => {
  const source = await sorterEngine(1, 3);
  const exports = [join(root, 'one'), join(root, 'several')];
  await source.saveCheckpoint(join(root, 'theirs'));
  await consolidate(join(root, 'theirs'), exports[0] as string);
  await consolidate(join(root, 'theirs'), exports[1] as string, { maxShardBytes: 1 });
  const expected = (source.module as Sorter).evaluate();
  for (const path of exports) {
    let model = new Sorter();
    const places = await everyFault(
      CALLS,
      () => {
        model = new Sorter();
        return nn.loadWeights(model, path);
      },
      async (fault) => {
        requirePlace(fault);
        if (!fault.error) expect([fault.place, model.evaluate()]).toEqual([fault.place, expected]);
        await nn.loadWeights(model, path);
        expect([fault.place, model.evaluate()]).toEqual([fault.place, expected]);
      },
      mode,
    );
    expect(places).toBeGreaterThan(10);
  }
});

test.each(BOTH)('GPT2.fromPretrained: a model, or none (%j)', async (mode) => {
  const source = await tinyEngine(5, 1);
  engines.push(source);
  await source.saveCheckpoint(join(root, 'theirs'));
  const path = join(root, 'folder');
  await consolidate(join(root, 'theirs'), path, { format: 'hf' });
  const { fromPretrained } = nn.models.GPT2;
  const fullRows = valuesOf(await fromPretrained(path));
  const places = await everyFault(
    CALLS,
    async () => expect(valuesOf(await fromPretrained(path))).toEqual(fullRows),
    async (fault) => requirePlace(fault),
    mode,
  );
  expect(places).toBeGreaterThan(10);
});

const valuesOf = (model: nn.Module) =>
  Array.from(model.namedParameters(), ([name, parameter]) => [name, parameter.toArray()]);

test.each(BOTH)('consolidate writes a complete folder, or none (%j)', async (mode) => {
  const source = await sorterEngine(1, 3);
  await source.saveCheckpoint(join(root, 'theirs'));
  const fullText = join(root, 'whole');
  await consolidate(join(root, 'theirs'), fullText);
  const bytes = await files.readFile(join(fullText, 'model.safetensors'));
  const out = join(root, 'out');
  const places = await everyFault(
    CALLS,
    () => consolidate(join(root, 'theirs'), out),
    async (fault) => {
      requirePlace(fault);
      const result = await files.readFile(join(out, 'model.safetensors')).catch(() => null);
      expect([fault.place, result]).toEqual([fault.place, fault.error ? null : bytes]);
      await files.rm(out, { recursive: true, force: true });
    },
    mode,
  );
  expect(places).toBeGreaterThan(20);
});
