// The forms of DeepSpeed's pipeline tutorial: a module as the loss, and batches of training data.
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { initialize, nn, PipelineModule, seed, Tensor } from '../../lib/index.js';

const config = {
  train_micro_batch_size_per_gpu: 2,
  gradient_accumulation_steps: 2,
  optimizer: { type: 'SGD', params: { lr: 0.05 } },
  pipeline: { stages: 1 },
  seed: 3,
} as const;

/** Samples [x, y]; six are not a multiple of a step's four. */
const trainingData = {
  length: 6,
  get: (i: number): [Tensor, Tensor] => [
    Tensor.from([i / 6, 1 - i / 6, Math.sin(i)]),
    Tensor.from([Math.cos(i)]),
  ],
};

const modelWith = (lossFn: nn.Module | ((a: Tensor, b: Tensor) => Tensor)): PipelineModule =>
  new PipelineModule({ layers: [new nn.Linear(3, 4), new nn.Linear(4, 1)], lossFn });

async function losses(
  lossFn: Parameters<typeof modelWith>[0],
  own: boolean,
  steps = 5,
): Promise<number[]> {
  seed(3);
  const model = modelWith(lossFn);
  const { engine, trainLoader } = await initialize({ model, config, trainingData, device: 'cpu' });
  const found: number[] = [];
  let batches = trainLoader?.[Symbol.asyncIterator]() as AsyncIterator<unknown>;
  const repeated: AsyncIterator<unknown> = {
    next: async () => {
      const result = await batches.next();
      if (!result.done) return result;
      batches = trainLoader?.[Symbol.asyncIterator]() as AsyncIterator<unknown>;
      return batches.next();
    },
  };
  for (let step = 0; step < steps; ++step) {
    found.push((await (own ? engine.trainBatch(repeated) : engine.trainBatch())).item());
  }
  engine.destroy();
  return found;
}

test('lossFn is a function or a module', async () => {
  const byFunction = await losses((a, b) => a.sub(b).pow(2).mean(), true);
  const byModule = await losses(new nn.MSELoss(), true);
  for (const [i, loss] of byModule.entries()) expect(loss).toBeCloseTo(byFunction[i] as number, 6);
  const model = modelWith(new nn.MSELoss());
  expect([...model.namedParameters()].map(([name]) => name)).toEqual([
    'layers.0.weight',
    'layers.0.bias',
    'layers.1.weight',
    'layers.1.bias',
  ]);
});

test('refuses a loss that is neither a function nor a module, or has parameters', () => {
  for (const [lossFn, message] of [
    ['mse', /PipelineModule lossFn: expected a function or a module, .* got "mse"/],
    [nn.MSELoss, /expected a function or a module, .* got the class MSELoss/],
    [{}, /expected a function or a module/],
    [new nn.Linear(1, 1), /expected a loss without parameters; .* got .* with weight/],
  ] as const) {
    const make = () => modelWith(lossFn as never);
    expect(make).toThrow(message);
  }
});

test('trainBatch() without an iterator repeats the training data', async () => {
  const lossFn = new nn.MSELoss();
  expect(await losses(lossFn, false)).toEqual(await losses(lossFn, true));
});

test('trainBatch() without an iterator and without training data', async () => {
  const { engine } = await initialize({
    model: modelWith(new nn.MSELoss()),
    config,
    device: 'cpu',
  });
  await expect(engine.trainBatch()).rejects.toMatchObject({
    code: 'DS_ARGUMENT',
    message: expect.stringMatching(/expected an iterator of micro-batches.*trainingData/),
  });
  engine.destroy();
});

test('a checkpoint keeps the place in the training data', async () => {
  const dir = mkdtempSync(join(tmpdir(), 'ds-served-'));
  const open = async () => {
    seed(3);
    const options = { model: modelWith(new nn.MSELoss()), config, trainingData, device: 'cpu' };
    return (await initialize(options)).engine;
  };
  const run = async (engine: Awaited<ReturnType<typeof open>>, steps: number) => {
    const found: number[] = [];
    for (let i = 0; i < steps; ++i) found.push((await engine.trainBatch()).item());
    return found;
  };
  try {
    const first = await open();
    await run(first, 2);
    await first.saveCheckpoint(dir);
    const rest = await run(first, 4);
    // In the engine that has gone on, and in one that has not begun.
    await first.loadCheckpoint(dir);
    expect(await run(first, 4)).toEqual(rest);
    first.destroy();
    const second = await open();
    await second.loadCheckpoint(dir);
    expect(await run(second, 4)).toEqual(rest);
    second.destroy();
  } finally {
    rmSync(dir, { recursive: true });
  }
});
