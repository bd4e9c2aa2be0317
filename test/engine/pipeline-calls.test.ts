// Tests the calls of a pipeline engine with one stage: what it takes as a micro-batch, what it
// refuses, and the mean loss of an evaluation.
import {
  type DsError,
  initialize,
  nn,
  type PipelineEngine,
  PipelineModule,
  seed,
  Tensor,
} from '../../lib/index.js';
import { cpu } from '../../lib/runtime/device.js';
import { scope } from '../../lib/tensor/index.js';
import { refusal, thrownBy } from '../support/refusal.js';

const MICROS = 2;
let engine: PipelineEngine;
beforeAll(async () => {
  seed(5);
  const made = await initialize({
    model: new PipelineModule({
      layers: [new nn.Linear(3, 4), new nn.Linear(4, 1)],
      lossFn: (out: Tensor, y: Tensor) => out.sub(y).square().mean(),
    }),
    config: {
      ...{ train_micro_batch_size_per_gpu: 2, gradient_accumulation_steps: MICROS },
      optimizer: { type: 'AdamW', params: { lr: 0.05 } },
      pipeline: { stages: 1 },
    },
    device: cpu(),
  });
  engine = made.engine as PipelineEngine;
});
afterAll(() => engine.destroy());

const inputs = (): Tensor => Tensor.from([1, 2, 3, 4, 5, 6], { shape: [2, 3] });
const labels = (value: number): Tensor => Tensor.from([value, value], { shape: [2, 1] });

/** The mean loss of two micro-batches. */
async function evaluated(items: readonly unknown[]): Promise<number> {
  const loss = await engine.evalBatch(items.values() as never);
  const value = loss.item() as number;
  loss.dispose();
  return value;
}

/** The loss of one micro-batch, by the layers. */
function lossOf(value: number): number {
  return scope(() => {
    const [first, second] = [...engine.module.modules()].filter(
      (one) => one instanceof nn.Linear,
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
  for (const form of forms) expect(await evaluated([form(1), form(4)])).toBeCloseTo(expected, 5);
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
  const { code, op, ...found } = await refusal(() => evaluated([item(), item()]));
  expect([code, op]).toEqual(['DS_DATA', 'engine.evalBatch']);
  expect(found).toMatchObject(error);
});

test('inputs must be values of tensors', async () => {
  const error = await refusal(() => evaluated([['text', labels(1)]]));
  expect(error).toMatchObject({ code: 'DS_ARGUMENT', op: 'engine.evalBatch, inputs' });
});

test.each<[what: string, given: unknown, error: object]>([
  ['nothing', undefined, { code: 'DS_ARGUMENT', expected: 'an iterator of micro-batches' }],
  ['null', null, { code: 'DS_ARGUMENT', expected: 'an iterator of micro-batches' }],
  ['a list', [], { code: 'DS_ARGUMENT', expected: 'an iterator of micro-batches' }],
  ['a next() without a result', { next: () => 5 }, { code: 'DS_ARGUMENT', got: '5' }],
  ['a next() with null', { next: () => null }, { code: 'DS_ARGUMENT', got: 'null' }],
])('%s is no iterator', async (_, given, error) => {
  const found = await refusal(() => engine.evalBatch(given as never));
  expect(found).toMatchObject({ op: 'engine.evalBatch', ...error });
});

test('too few micro-batches are counted', async () => {
  const error = await refusal(() => evaluated([[inputs(), labels(1)]]));
  expect(error).toMatchObject({
    ...{ code: 'DS_DATA', op: 'engine.evalBatch', got: 'an iterator that ended after 1' },
    expected: '2 micro-batches (gradient_accumulation_steps)',
  });
});

test('parts of a step are refused', () => {
  for (const call of ['forward', 'backward', 'step'] as const) {
    expect(thrownBy(() => engine[call]())).toMatchObject({
      ...{ code: 'DS_AUTOGRAD', op: `engine.${call}` },
      expected: 'engine.trainBatch() or engine.evalBatch()',
    });
  }
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
