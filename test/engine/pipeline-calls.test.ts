// Tests the calls of a pipeline engine with one stage: its forms of a micro-batch, its refusals,
// and the mean loss of an evaluation.
import { Mesh } from '../../lib/comm/mesh.js';
import { MeshShape } from '../../lib/comm/mesh-shape.js';
import { BatchShapes } from '../../lib/engine/step/batch-shapes.js';
import {
  DsError,
  initialize,
  nn,
  type PipelineEngine,
  PipelineModule,
  seed,
  Tensor,
} from '../../lib/index.js';
import type { PipelineBatch } from '../../lib/pipe/index.js';
import { cpu } from '../../lib/runtime/device.js';
import { noGrad, scope } from '../../lib/tensor/index.js';
import { refusal, thrownBy } from '../support/refusal.js';

const MICROS = 2;
let engine: PipelineEngine;
beforeAll(async () => {
  seed(5);
  const initializedPipeline = await initialize({
    model: new PipelineModule({
      layers: [new nn.Linear(3, 4), new nn.Linear(4, 1)],
      lossFn: (out: Tensor, y: Tensor) => out.sub(y).square().mean(),
    }),
    config: {
      train_micro_batch_size_per_gpu: 2,
      gradient_accumulation_steps: MICROS,
      optimizer: { type: 'AdamW', params: { lr: 0.05 } },
      pipeline: { stages: 1 },
    },
    device: cpu(),
  });
  engine = initializedPipeline.engine as PipelineEngine;
});
afterAll(() => engine.destroy());

const inputs = (): Tensor => Tensor.from([1, 2, 3, 4, 5, 6], { shape: [2, 3] });
const labels = (value: number): Tensor => Tensor.from([value, value], { shape: [2, 1] });

/** The mean loss of two micro-batches. */
async function evaluateItems(items: readonly unknown[]): Promise<number> {
  const loss = await engine.evalBatch(items.values() as never);
  const value = loss.item() as number;
  loss.dispose();
  return value;
}

/** The loss of one micro-batch, by the layers. */
function lossOf(value: number): number {
  return scope(() => {
    const [first, second] = [...engine.module.modules()].filter(
      (module) => module instanceof nn.Linear,
    ) as [nn.Linear, nn.Linear];
    const out = second.call(first.call(inputs()));
    return out.sub(labels(value)).square().mean().item() as number;
  });
}

test('the loss of an evaluation is the mean of the micro-batches, in each form', async () => {
  const expected = (lossOf(1) + lossOf(4)) / 2;
  const forms: ((value: number) => unknown)[] = [
    (value) => [inputs(), labels(value)],
    (value) => ({ inputs: inputs(), labels: labels(value) }),
    (value) => ({ tokens: inputs(), targets: labels(value), mask: null, other: undefined }),
  ];
  for (const form of forms)
    expect(await evaluateItems([form(1), form(4)])).toBeCloseTo(expected, 5);
});

test.each<[what: string, item: () => unknown, error: Partial<DsError>]>([
  [
    'another key',
    () => ({ inputs: inputs(), labels: labels(1), mask: inputs(), more: 1 }),
    { expected: 'only inputs and labels', got: 'another key, mask' },
  ],
  ['a list of three', () => [1, 2, 3], { expected: 'micro-batches [inputs, labels]' }],
  ['a list of one', () => [inputs()], { expected: 'micro-batches [inputs, labels]' }],
  ['labels alone', () => ({ labels: labels(1) }), { expected: 'micro-batches [inputs, labels]' }],
  ['a number', () => 3, { expected: 'micro-batches [inputs, labels]', got: '3' }],
])('%s is refused', async (_, item, error) => {
  const { code, op, ...found } = await refusal(() => evaluateItems([item(), item()]));
  expect([code, op]).toEqual(['DS_DATA', 'engine.evalBatch']);
  expect(found).toMatchObject(error);
});

test('inputs must be values of tensors', async () => {
  const error = await refusal(() => evaluateItems([['text', labels(1)]]));
  expect(error).toMatchObject({ code: 'DS_ARGUMENT', op: 'engine.evalBatch, inputs' });
});

test.each<[what: string, given: unknown, error: object]>([
  ['nothing', undefined, { code: 'DS_ARGUMENT', expected: 'an iterator of micro-batches' }],
  ['null', null, { code: 'DS_ARGUMENT', expected: 'an iterator of micro-batches' }],
  ['a list', [], { code: 'DS_ARGUMENT', expected: 'an iterator of micro-batches' }],
  ['a next() without a result', { next: () => 5 }, { code: 'DS_ARGUMENT', got: '5' }],
  ['a next() with null', { next: () => null }, { code: 'DS_ARGUMENT', got: 'null' }],
])('%s is no iterator', async (_, options, error) => {
  const found = await refusal(() => engine.evalBatch(options as never));
  expect(found).toMatchObject({ op: 'engine.evalBatch', ...error });
});

test('the error of too few micro-batches has their number', async () => {
  const error = await refusal(() => evaluateItems([[inputs(), labels(1)]]));
  expect(error).toMatchObject({
    code: 'DS_DATA',
    op: 'engine.evalBatch',
    got: 'an iterator that ended after 1',
    expected: '2 micro-batches (gradient_accumulation_steps)',
  });
});

test('parts of a step are refused', () => {
  for (const call of ['forward', 'backward', 'step'] as const) {
    expect(thrownBy(() => engine[call]())).toMatchObject({
      code: 'DS_AUTOGRAD',
      op: `engine.${call}`,
      expected: 'engine.trainBatch() or engine.evalBatch()',
    });
  }
});

test('a single stage is the first and the last stage', () => {
  expect([engine.numStages, engine.stageId, engine.isFirstStage, engine.isLastStage]).toEqual([
    1,
    0,
    true,
    true,
  ]);
});

test('an evaluation changes nothing, and leaves the mode as it was', async () => {
  const items = (count: number) => Array.from({ length: count }, () => [inputs(), labels(3)]);
  const { control } = engine.parts;
  const noted = jest.spyOn(control, 'addInputs');
  const [steps, loss] = [engine.globalSteps, lossOf(3)];
  for (const training of [false, true]) {
    engine.module.train(training);
    expect(await evaluateItems(items(MICROS))).toBeCloseTo(loss, 5);
    expect(engine.module.training).toBe(training);
    await refusal(() => evaluateItems([[inputs(), labels(3)], 3]));
    expect(engine.module.training).toBe(training);
  }
  const failing = [[inputs(), Tensor.from([1, 2, 3], { shape: [3, 1] })]];
  await expect(engine.evalBatch(failing.values() as never, 1)).rejects.toThrow();
  expect(engine.module.training).toBe(true);
  const [one] = items(1);
  const mean = await engine.evalBatch([one].values() as never, 1);
  expect(mean.item()).toBeCloseTo(loss, 5);
  mean.dispose();
  expect([engine.globalSteps, lossOf(3)]).toEqual([steps, loss]);
  const kinds = noted.mock.calls.map(([what]) => what);
  expect(new Set(kinds)).toEqual(new Set(['evaluated inputs', 'evaluated labels']));
  (await engine.trainBatch(items(MICROS).values() as never)).dispose();
  expect(noted.mock.calls.slice(-2)).toEqual([
    ['inputs', [expect.any(Tensor), expect.any(Tensor)]],
    ['labels', [expect.any(Tensor), expect.any(Tensor)]],
  ]);
  noted.mockRestore();
});

test('a model in evaluation mode is not trained', async () => {
  engine.eval();
  const error = await refusal(() => engine.trainBatch([].values() as never));
  expect(error).toMatchObject({
    code: 'DS_AUTOGRAD',
    op: 'engine.trainBatch',
    got: 'engine.eval()',
    expected: 'engine.train() before it',
  });
  engine.train();
});

test('without an iterator, batches come from the loader of initialize(), again and again', async () => {
  const none = await refusal(() => engine.trainBatch());
  expect(none).toMatchObject({ op: 'engine.trainBatch', expected: 'an iterator of micro-batches' });
  const steps = engine.globalSteps;
  const list = [1, 2, 3].map((value) => [inputs(), labels(value)]);
  const loader = {
    [Symbol.iterator]: () => list.values(),
    [Symbol.asyncIterator]: async function* () {
      yield* list;
    },
  };
  engine.serveFrom(loader as never);
  // Two epochs of three micro-batches.
  for (let i = 0; i < 3; i++) (await engine.trainBatch()).dispose();
  expect(engine.globalSteps).toBe(steps + 3);
});

test('the error of a batch is that of its cause, whatever fails after it', async () => {
  const { control, gradients } = engine.parts;
  const dropped = jest.spyOn(control, 'dropInputs');
  const discard = jest.spyOn(gradients, 'discard').mockImplementation(() => {
    throw new Error('a lost rank');
  });
  const error = await refusal(() => engine.trainBatch([3].values() as never));
  expect(error.expected).toBe('micro-batches [inputs, labels]');
  expect([dropped.mock.calls.length, discard.mock.calls.length]).toEqual([1, 1]);
  for (const spy of [dropped, discard]) spy.mockRestore();
});

describe('the mean loss of an evaluation over ranks', () => {
  /** The loss that rank `rank` of four adds, and the mean of a sum of 24. */
  async function shareLosses(rank: number, losses: number | null, place = 0) {
    const sent: unknown[] = [];
    const world = {
      rank,
      size: 4,
      allReduce(total: Tensor, options: object) {
        sent.push(total.item(), options);
        noGrad(() => total.fill_(24));
        return { wait() {} };
      },
    };
    const ranks = { world, mesh: { place: () => place }, replicaAxes: [], lossRanks: [1, 3] };
    const self = { device: cpu(), parts: { ranks } };
    const { meanLoss } = engine as unknown as {
      meanLoss(losses: Tensor | null, micros: number): Promise<Tensor>;
    };
    const localTensor =
      losses === null ? null : Tensor.from(losses as never, { dtype: 'f32' }).keep();
    const mean = await meanLoss.call(self, localTensor, 3);
    sent.push(mean.item());
    mean.dispose();
    return sent;
  }
  const purpose = { purpose: 'evaluation loss' };

  test('counts each of the loss ranks once', async () => {
    expect(await shareLosses(1, 5)).toEqual([5, purpose, 24 / (3 * 2)]);
    expect(await shareLosses(0, 5)).toEqual([0, purpose, 4]);
    expect(await shareLosses(2, null)).toEqual([0, purpose, 4]);
    expect(await shareLosses(3, 5, 1)).toEqual([0, purpose, 4]);
  });
});

test('one batch at a time; a failed batch leaves no gradients', async () => {
  const item = (): unknown => [inputs(), labels(2)];
  const running = engine.trainBatch([item(), item()].values() as never);
  const error = await refusal(() => engine.trainBatch([item(), item()].values() as never));
  expect(error).toMatchObject({ op: 'engine.trainBatch', got: 'a call inside another' });
  (await running).dispose();
  const steps = engine.globalSteps;
  await refusal(() => engine.trainBatch([item(), 3].values() as never));
  expect(engine.globalSteps).toBe(steps);
  (await engine.trainBatch([item(), item()].values() as never)).dispose();
  expect(engine.globalSteps).toBe(steps + 1);
});

describe('the shapes of batches on other ranks', () => {
  const lost = new DsError({ code: 'DS_COMM', op: 'send', expected: 'all', got: 'fewer' });

  /** Ranks of `mesh` that share a store, and the texts that it holds. */
  function shapesOf(size: number, mesh: object) {
    const values = new Map<string, string>();
    const writes: string[] = [];
    const store = {
      set: async (key: string, value: string) => {
        writes.push(key);
        values.set(key, value);
      },
      get: async (key: string) => {
        const value = values.get(key);
        if (value === undefined) throw new Error('no such key');
        return value;
      },
    };
    const ranks = Array.from({ length: size }, (_, rank) => {
      const place = { rank, size } as never;
      const job = {
        rank,
        store,
        nextName: () => 'shapes',
        mesh: new Mesh(MeshShape.over(size, mesh), place, null as never),
      };
      return new BatchShapes(job as never);
    });
    return { ranks, writes };
  }

  const batch = (rows: number, of: 'both' | 'inputs' | 'labels' = 'both'): PipelineBatch[] => [
    [
      of === 'labels' ? null : Tensor.from(new Float32Array(rows * 2), { shape: [rows, 2] }),
      of === 'inputs' ? null : Tensor.from(new Int32Array(rows)),
    ] as never,
  ];

  const localError = new Error('sizes that do not fit');

  test('explain an error of this rank, after a moment, by what differs', async () => {
    const { ranks } = shapesOf(4, { pp: 2 });
    const rows = [2, 3, 4, 3];
    for (const [rank, one] of ranks.entries()) await one.report(batch(rows[rank] as number));
    // Each look at the clock is later than the patience for a rank.
    let now = 0;
    const clock = jest.spyOn(Date, 'now').mockImplementation(() => {
      now += 2000;
      return now;
    });
    try {
      const found = await ranks[2]?.explain(localError, 7);
      expect(found).toMatchObject({
        code: 'DS_COMM',
        op: 'engine.step',
        expected: 'the same batches on ranks that differ only on pp',
        got: 'other shapes of inputs on rank 2 than on rank 0 in step 7',
        hint: expect.stringContaining('may pass null'),
      });
      // Ranks 1 and 3 read equal batches.
      expect(await ranks[1]?.explain(localError, 7)).toBe(localError);
    } finally {
      clock.mockRestore();
    }
  });

  test('explain nothing for a lost rank, or without both batches', async () => {
    const { ranks } = shapesOf(2, { pp: 2 });
    await ranks[0]?.report(batch(2));
    expect(await ranks[1]?.explain(localError, 1)).toBe(localError);
    // Rank 1 has not reported.
    expect(await ranks[0]?.explain(localError, 1)).toBe(localError);
    await ranks[1]?.report(batch(3));
    expect(await ranks[0]?.explain(lost, 1)).toBe(lost);
  });

  test('do not differ where one rank reads inputs and the other one labels', async () => {
    const { ranks } = shapesOf(2, { pp: 2 });
    await ranks[0]?.report(batch(2, 'inputs'));
    await ranks[1]?.report(batch(3, 'labels'));
    expect(await ranks[0]?.explain(localError, 1)).toBe(localError);
  });

  test('are written when they change', async () => {
    const { ranks, writes } = shapesOf(2, { pp: 2 });
    const report = (rows: PipelineBatch[]) => ranks[1]?.report(rows);
    await report([]);
    expect(writes).toEqual([]);
    for (const rows of [2, 2, 3, 3, 2]) await report(batch(rows));
    expect(writes).toEqual(['shapes/1', 'shapes/1', 'shapes/1']);
  });
});
