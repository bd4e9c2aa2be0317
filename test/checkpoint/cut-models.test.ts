// Tests engines with a model split over ranks: each rank loads its parts from a checkpoint of the
// whole model, and together they save one.
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import {
  type CheckpointWorld,
  type Shard,
  saveCheckpoint,
  WeightFiles,
  writeTogether,
} from '../../lib/checkpoint/index.js';
import { describeJob, takeContent } from '../../lib/engine/saving/background-job.js';
import {
  buildCatalog,
  divideByBox,
  releaseShards,
  weightShards,
} from '../../lib/engine/saving/engine-shards.js';
import { HostCopy } from '../../lib/engine/saving/host-copy.js';
import { restoreEngine } from '../../lib/engine/saving/restore.js';
import { createContent } from '../../lib/engine/saving/snapshot.js';
import { type DsConfig, type Engine, initialize, nn, seed, Tensor } from '../../lib/index.js';
import { type Box, isPart, type Region } from '../../lib/runtime/box.js';
import { numel } from '../../lib/runtime/view.js';
import { valuesOf } from './content.js';
import { onRanks } from './joined-worlds.js';
import { partitionEngine } from './partitioned-engine.js';

let dir: string;
beforeEach(() => {
  dir = mkdtempSync(join(tmpdir(), 'ds-cut-'));
});
afterEach(() => rmSync(dir, { recursive: true, force: true }));

/** A rank's number, and the number of ranks that split the model. */
interface Share {
  rank: number;
  ranks: number;
}

const WIDTH = 12;
const WHOLE: Share = { rank: 0, ranks: 1 };

const rows = (from: number, count: number, inner: readonly number[]): Box => ({
  offset: [from, ...inner.map(() => 0)],
  shape: [count, ...inner],
});

/** This rank's rows of q, of k and of v. */
function thirds({ rank, ranks }: Share, inner: readonly number[]): Region {
  const size = WIDTH / ranks;
  const boxes = [0, 1, 2].map((third) => rows(third * WIDTH + rank * size, size, inner));
  return { whole: [3 * WIDTH, ...inner], boxes };
}

function columns({ rank, ranks }: Share, height: number): Region {
  const size = WIDTH / ranks;
  const box = { offset: [0, rank * size], shape: [height, size] };
  return { whole: [height, WIDTH], boxes: [box] };
}

function cutParameter(region: Region, shape: readonly number[]): nn.Parameter {
  return new nn.Parameter(shape, nn.init.normal(0.5)).partOf(region);
}

/** A layer and a buffer that only the first rank has. */
class First extends nn.Module {
  readonly norm = new nn.LayerNorm(5);
  readonly seen = Tensor.from(new Int32Array([3, 1, 4]));

  override forward(): never {
    throw new Error('its parts are used one by one');
  }
}

class CutModel extends nn.Module {
  readonly qkv: nn.Parameter;
  readonly bias: nn.Parameter;
  readonly out: nn.Parameter;
  readonly frozen: nn.Parameter;
  /** Every rank has a whole copy. */
  readonly common = new nn.LayerNorm(3);
  readonly first?: First;

  constructor(share: Share) {
    super();
    const size = WIDTH / share.ranks;
    this.qkv = cutParameter(thirds(share, [7]), [3 * size, 7]);
    this.bias = cutParameter(thirds(share, []), [3 * size]);
    this.out = cutParameter(columns(share, 9), [9, size]);
    this.frozen = cutParameter(columns(share, 4), [4, size]).requireGrad(false);
    if (share.rank === 0) this.first = new First();
  }

  override forward(target: Tensor): Tensor {
    const trained = this.parameters().filter((parameter) => parameter.requiresGrad);
    const losses = trained.map((parameter) => parameter.sub(target).square().mean().to('f32'));
    return losses.reduce((sum, tensor) => sum.add(tensor));
  }
}

const CONFIG: DsConfig = {
  train_micro_batch_size_per_gpu: 1,
  optimizer: { type: 'AdamW', params: { lr: 1e-2, weight_decay: 0.1 } },
  bf16: { enabled: true },
};

async function engineOf(share: Share, from: number, steps = 0): Promise<Engine> {
  seed(from);
  const model = new CutModel(share);
  const { engine } = await initialize({ model, config: CONFIG, device: 'cpu' });
  train(engine, steps);
  return engine;
}

function train(engine: Engine, steps: number): number[] {
  const losses = Array.from({ length: steps }, (_, i) => {
    const target = Tensor.from([[0.1 * i]], { dtype: 'bf16' });
    const loss = engine.forward<Tensor>(target);
    engine.backward(loss);
    engine.step();
    target.dispose();
    return loss.item();
  });
  engine.synchronize();
  return losses;
}

/** A rank of a mesh: a part of the model, and inside it a ZeRO rank. */
interface Place extends Share {
  zero: number;
  zeros: number;
  stage: number;
}

function placesOf(ranks: number, zeros: number, stage: number): Place[] {
  return Array.from({ length: ranks * zeros }, (_, i) => ({
    ranks,
    zeros,
    stage,
    rank: Math.floor(i / zeros),
    zero: i % zeros,
  }));
}

/**
 * Presents an engine of one rank as a rank of the mesh. The first rank owns the tensors that are
 * not split.
 */
function placeEngine(engine: Engine, { rank, zero, zeros, stage }: Place): Engine {
  const view = zeros === 1 ? engine : partitionEngine(engine, { stage, rank: zero, size: zeros });
  const mesh = { place: () => rank };
  const tensorGroup = { rank };
  const isPrimary = ({ region }: nn.Parameter) => rank === 0 || isPart(region);
  const ranks = { ...view.parts.ranks, mesh, tensorGroup, isPrimary };
  return Object.create(view, { parts: { value: { ...view.parts, ranks } } }) as Engine;
}

const asShare = (engine: Engine, share: Share): Engine =>
  placeEngine(engine, { ...share, zero: 0, zeros: 1, stage: 0 });

async function save(engines: readonly Engine[], tag: string): Promise<void> {
  await onEach(engines, async (engine, world) => {
    const content = createContent(engine, { clientState: { note: tag } });
    try {
      await saveCheckpoint({ dir, tag, saveLatest: true }, content, world);
    } finally {
      releaseShards([...content.model, ...content.optimizer]);
    }
  });
}

async function load(engines: readonly Engine[], tag: string): Promise<void> {
  await onEach(engines, async (engine, world) => {
    const { clientState } = await restoreEngine(engine, dir, { tag }, world);
    expect(clientState).toEqual({ note: tag });
  });
}

async function onEach(
  engines: readonly Engine[],
  body: (engine: Engine, world: CheckpointWorld) => Promise<void>,
): Promise<void> {
  const results = await onRanks(engines.length, (world) =>
    body(engines[world.rank] as Engine, world),
  );
  for (const one of results) if (one.status === 'rejected') throw one.reason;
}

/**
 * Compares every weight element of the rank, by tensor and place, with the values of a checkpoint.
 */
function requireValues(engine: Engine, values: Record<string, number[]>): void {
  for (const [name, parameter] of engine.module.namedParameters()) {
    const { whole } = parameter.region;
    for (const { box, tensor } of divideByBox(parameter.region, 0, parameter.detach().retain())) {
      const expected: number[] = [];
      const inner = numel(whole.slice(1));
      for (let i = 0; i < numel(box.shape); ++i) {
        const width = numel(box.shape.slice(1));
        const [row, column] = [Math.floor(i / width), i % width];
        const first = box.offset[1] ?? 0;
        const at = ((box.offset[0] as number) + row) * inner + first + column;
        expected.push(values[name]?.[at] as number);
      }
      expect([name, tensor.toArray().flat()]).toEqual([name, expected]);
      tensor.release();
    }
  }
}

test.each([
  [1, 2, 3],
  [2, 1, 0],
  [2, 2, 0],
  [2, 2, 3],
  [3, 2, 3],
  [4, 3, 3],
])(
  'a checkpoint of the whole, loaded by %d shares x %d ranks at stage %d, saved by them, and whole again',
  async (ranks, zeros, stage) => {
    const fullEngine = await engineOf(WHOLE, 1, 3);
    await save([fullEngine], 'whole');
    const values = await valuesOf(dir, 'whole');
    const places = placesOf(ranks, zeros, stage);
    const engines: Engine[] = [];
    for (const place of places) engines.push(await engineOf(place, 50 + place.rank, 1));
    const views = places.map((place, i) => placeEngine(engines[i] as Engine, place));
    await load(views, 'whole');
    if (zeros === 1) for (const engine of engines) requireValues(engine, values);
    await save(views, 'cut');
    expect(await valuesOf(dir, 'cut')).toEqual(values);

    const again = await engineOf(WHOLE, 9, 2);
    await load([again], 'cut');
    expect(train(again, 3)).toEqual(train(fullEngine, 3));
    for (const engine of [fullEngine, again, ...engines]) engine.destroy();
  },
);

test('from two ranks to three, in the order of the packed projection', async () => {
  const fullEngine = await engineOf(WHOLE, 1, 2);
  await save([fullEngine], 'whole');
  const values = await valuesOf(dir, 'whole');
  const engines: Engine[] = [fullEngine];
  for (const ranks of [2, 3]) {
    const shares: Engine[] = [];
    for (let rank = 0; rank < ranks; ++rank) {
      shares.push(asShare(await engineOf({ rank, ranks }, 70, 1), { rank, ranks }));
    }
    await load(shares, ranks === 2 ? 'whole' : 'by2');
    for (const engine of shares) requireValues(engine, values);
    await save(shares, `by${ranks}`);
    expect(await valuesOf(dir, `by${ranks}`)).toEqual(values);
    engines.push(...shares);
  }
  for (const engine of engines) engine.destroy();
});

test('two ranks write one file of weights together', async () => {
  const fullEngine = await engineOf(WHOLE, 1, 2);
  await save([fullEngine], 'whole');
  const engines: Engine[] = [];
  for (const rank of [0, 1]) {
    const share = { rank, ranks: 2 };
    engines.push(asShare(await engineOf(share, 5 + rank), share));
  }
  await load(engines, 'whole');
  const all = engines.flatMap((engine) => [...buildCatalog(engine, () => true).model]);
  const catalog = new Map(all.filter(([name]) => /qkv|out|common/.test(name)));
  await onEach(engines, async (engine, world) => {
    const shards = weightShards(engine, () => true);
    const expected = shards.filter(({ name }) => catalog.has(name));
    await writeTogether({ dir, file: 'w.safetensors' }, catalog, expected, world);
    releaseShards(shards);
  });
  const files = await WeightFiles.open(join(dir, 'w.safetensors'));
  const values = await valuesOf(dir, 'whole');
  for (const name of catalog.keys()) {
    const read = await files.read(name);
    expect(read.toArray().flat()).toEqual(values[name]);
    read.release();
  }
  await files.close();
  for (const engine of [fullEngine, ...engines]) engine.destroy();
});

test('the thread of an asynchronous save receives boxes', async () => {
  const share = { rank: 1, ranks: 2 };
  const engine = await engineOf(share, 3, 1);
  const content = createContent(asShare(engine, share), { clientState: {} });
  const copy = new HostCopy(engine.device);
  const [model, optimizer] = [copy.take(content.model), []];
  copy.wait();
  const target = { dir, tag: 't', saveLatest: true };
  const job = structuredClone(describeJob(target, { ...content, model, optimizer }, null));
  const taken = takeContent(job);
  const outline = ({ name, shape, box, from, tensor }: Shard) => {
    return { name, shape, box, from, values: (tensor as Tensor).toArray().flat() };
  };
  expect(taken.part).toEqual({ data: 0, model: 1 });
  expect(taken.model.map(outline)).toEqual(content.model.map(outline));
  expect(taken.model.find(({ name }) => name === 'out')?.box?.offset).toEqual([0, 6]);
  for (const shards of [taken.model, model, content.model, content.optimizer]) {
    releaseShards(shards);
  }
  copy.dispose();
  engine.destroy();
});

test('all ranks refuse a tensor of the checkpoint that no rank has', async () => {
  const fullEngine = await engineOf(WHOLE, 1, 1);
  await save([fullEngine], 'whole');
  const engines: Engine[] = [];
  for (const from of [0, 1]) engines.push(await engineOf({ rank: 1, ranks: 2 }, from));
  await expect(load(engines, 'whole')).rejects.toThrow(/3 more, "first\.norm\.weight" among them/);
  const results = await onRanks(2, (world) =>
    restoreEngine(engines[world.rank] as Engine, dir, { tag: 'whole' }, world),
  );
  for (const one of results) {
    expect(one).toMatchObject({ status: 'rejected', reason: { code: 'DS_CHECKPOINT' } });
  }
  for (const engine of [fullEngine, ...engines]) engine.destroy();
});

test.each<[string, Region, RegExp]>([
  [
    'outside',
    { whole: [4, 4], boxes: [{ offset: [2, 0], shape: [3, 2] }] },
    /\[3, 2\] at \[2, 0\]/,
  ],
  ['too small', { whole: [4, 4], boxes: [{ offset: [0, 0], shape: [2, 2] }] }, /6 elements in all/],
  [
    'overlapping',
    {
      whole: [9, 2],
      boxes: [
        { offset: [0, 0], shape: [2, 2] },
        { offset: [1, 1], shape: [2, 1] },
      ],
    },
    /without overlap/,
  ],
  ['none', { whole: [4, 4], boxes: [] }, /got none/],
  ['negative', { whole: [4, 4], boxes: [{ offset: [0, -1], shape: [3, 2] }] }, /partOf/],
])('boxes of a parameter that are %s: DS_SHAPE', (_name, region, message) => {
  const parameter = new nn.Parameter([3, 2], nn.init.zeros);
  expect(() => parameter.partOf(region)).toThrow(
    expect.objectContaining({ code: 'DS_SHAPE', message: expect.stringMatching(message) }),
  );
});

test('rows, columns and blocks of a part of a parameter are refused, state by element is not', async () => {
  const start = (type: 'Adafactor' | 'AdamW8bit', params: object) => {
    const optimizer = { type, params } as NonNullable<DsConfig['optimizer']>;
    const model = new CutModel({ rank: 1, ranks: 2 });
    return initialize({ model, config: { ...CONFIG, optimizer }, device: 'cpu' });
  };
  await expect(start('Adafactor', {})).rejects.toMatchObject({
    code: 'DS_CONFIG',
    message: expect.stringMatching(/whole parameters.*exp_avg_sq_row.*qkv, a part of \[36, 7\]/),
  });
  await expect(start('AdamW8bit', { min_8bit_size: 9 })).rejects.toMatchObject({
    code: 'DS_CONFIG',
    message: expect.stringMatching(/exp_avg_absmax/),
  });
  const { engine } = await start('AdamW8bit', {});
  engine.destroy();
});
