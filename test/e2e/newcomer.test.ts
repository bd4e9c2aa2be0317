// Tests the error messages for typical mistakes in plain JavaScript; the messages are the contract.
import assert from 'node:assert/strict';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import * as library from '../../lib/index.js';

// biome-ignore lint/suspicious/noExplicitAny: in JavaScript no types stop these mistakes.
type Untyped = any;
const ds = library as Untyped;
const { nn, optim, data, Tensor, DsError } = ds;

const config = {
  train_micro_batch_size_per_gpu: 2,
  optimizer: { type: 'AdamW', params: { lr: 1e-3 } },
};
const device = 'cpu';
const folder = mkdtempSync(join(tmpdir(), 'ds-newcomer-'));
const makeModel = () => new nn.Linear(2, 2);
const x = () => Tensor.from([1, 2, 3, 4]).reshape(2, 2);

/** Runs `body` with a new engine. */
async function withEngine(body: (engine: Untyped) => unknown, extra: object = {}): Promise<void> {
  const { engine } = await ds.initialize({
    model: makeModel(),
    config: { ...config, ...extra },
    device,
  });
  try {
    await body(engine);
  } finally {
    engine.destroy();
  }
}

/** The code of the mistake, the call, and a part of the message. */
type Mistake = readonly [typed: string, run: () => unknown, message: string];

const tensors: readonly Mistake[] = [
  [
    'zeros(2, 3)',
    () => ds.zeros(2, 3),
    'zeros: expected an object of options, such as { dtype: ... }, got 3.',
  ],
  [
    'zeros(2)',
    () => ds.zeros(2),
    'a list of integers of 0 and more, got 2. A shape is a list: [2].',
  ],
  [
    'zeros([-1])',
    () => ds.zeros([-1]),
    'zeros: expected a shape: a list of integers of 0 and more, got an array [-1].',
  ],
  [
    'randn([3 / 2])',
    () => ds.randn([3 / 2]),
    'got an array [1.5]. Apply Math.floor() to the result of a division.',
  ],
  ['arange(0, 10)', () => ds.arange(0, 10), 'arange: expected an object of options'],
  [
    "zeros([1], { dtype: 'float32' })",
    () => ds.zeros([1], { dtype: 'float32' }),
    '"float32" is \'f32\' here.',
  ],
  [
    "zeros([1], { device: 'gpu' })",
    () => ds.zeros([1], { device: 'gpu' }),
    'expected "cpu", "cuda", "cuda:N" or "auto", got "gpu".',
  ],
  ["x.to('half')", () => x().to('half'), '"half" is \'f16\' here.'],
  [
    'Tensor.from([[1, 2], [3]])',
    () => Tensor.from([[1, 2], [3]]),
    'expected 2 elements at [1], as in the first list of that level, got 1.',
  ],
  ["Tensor.from(['1', '2'])", () => Tensor.from(['1', '2']), 'expected a number at [0], got "1".'],
  [
    "Tensor.from([3e9], { dtype: 'i32' })",
    () => Tensor.from([3e9], { dtype: 'i32' }),
    'for i32, got 3000000000 as value 0.',
  ],
  [
    'Tensor.from([1], { requires_grad: true })',
    () => Tensor.from([1], { requires_grad: true }),
    'got "requires_grad".',
  ],
  [
    'x.add([1, 2])',
    () => x().add([1, 2]),
    'add: expected tensors, or a tensor and a number, got an array [1, 2]. Tensor.from() creates',
  ],
  ['add(1, 2)', () => ds.add(1, 2), 'expected tensors, or a tensor and a number, got 2.'],
  [
    'x.narrow(0, 3 / 2, 1)',
    () => x().narrow(0, 3 / 2, 1),
    'narrow: expected integers as positions and lengths, got 1.5. Apply Math.floor()',
  ],
  [
    'x.select(0, 0.5)',
    () => x().select(0, 0.5),
    'select: expected integers as positions and lengths, got 0.5.',
  ],
  [
    'x.reshape([-2, -2])',
    () => x().reshape([-2, -2]),
    'a list of integers of 0 and more, got an array [-2, -2].',
  ],
  [
    'x.reshape(3, 3)',
    () => x().reshape(3, 3),
    'reshape: expected 4 elements, as [2, 2] f32, got [3, 3].',
  ],
  ['x.split([3, -1])', () => x().split([3, -1]), 'got an array [3, -1].'],
  ['x.sum(2)', () => x().sum(2), 'sum: expected a dim in [-2, 2), got 2.'],
  [
    'x.sum(1, true)',
    () => x().sum(1, true),
    'Pass options by name: sum({ dims: 1, keepDim: true }).',
  ],
  ['x.mean({ axis: 1 })', () => x().mean({ axis: 1 }), 'Did you mean "dims"?'],
  [
    'where(x, 1, 0)',
    () => ds.where(x(), 1, 0),
    'where: expected a condition of dtype bool, got [2, 2] f32.',
  ],
  ['concat(x, x)', () => ds.concat(x(), x()), 'Pass an array: concat([a, b]).'],
  [
    'x.matmul(Tensor.from([1, 2, 3]))',
    () => x().matmul(Tensor.from([1, 2, 3])),
    'matmul: expected [.., M, K] and [.., K, N]',
  ],
  [
    'crossEntropy(logits, 1)',
    () => ds.crossEntropy(x(), 1),
    'got 1. Labels and token ids are integers:',
  ],
  [
    'crossEntropy(logits, floats)',
    () => ds.crossEntropy(x(), Tensor.from([0, 1])),
    'cross_entropy: expected an index of i32 or i64, got [2] f32. Labels',
  ],
  [
    'x.sum().backward() without requireGrad()',
    () => x().sum().backward(),
    'Call requireGrad() on the trained tensors, and compute the loss without noGrad()',
  ],
  [
    'x.mul(2).backward()',
    () => x().requireGrad().mul(2).backward(),
    'Reduce it with mean() or sum().',
  ],
  ["seed('1')", () => ds.seed('1'), 'seed: expected an integer of at least 0, got "1".'],
];

const modules: readonly Mistake[] = [
  [
    'new nn.Linear(2)',
    () => new nn.Linear(2),
    'Linear outputs: expected an integer of at least 1, got undefined.',
  ],
  [
    'new nn.Linear(2, 2, false)',
    () => new nn.Linear(2, 2, false),
    'such as { bias: ... }, got false.',
  ],
  [
    'new nn.Linear(2, 2, { biass: 0 })',
    () => new nn.Linear(2, 2, { biass: 0 }),
    'Did you mean "bias"?',
  ],
  [
    'new nn.LayerNorm([64])',
    () => new nn.LayerNorm([64]),
    'LayerNorm channels: expected an integer of at least 1, got an array [64].',
  ],
  [
    'new nn.Dropout(50)',
    () => new nn.Dropout(50),
    'Dropout p: expected a finite number of at least 0 and below 1, got 50.',
  ],
  [
    'new nn.Sequential(nn.ReLU)',
    () => new nn.Sequential(nn.ReLU),
    'Sequential layer 0: expected a module, got the function ReLU.',
  ],
  [
    'new nn.Parameter([2, 2])',
    () => new nn.Parameter([2, 2]),
    'expected an initializer: a function that writes',
  ],
  [
    'layer.call([[1, 2]])',
    () => makeModel().call([[1, 2]]),
    'linear: expected a tensor, got an array [[..]]. Tensor.from()',
  ],
];

const training: readonly Mistake[] = [
  [
    'new optim.AdamW(model)',
    () => new optim.AdamW(makeModel()),
    'AdamW: expected a list of parameters, got an object of class Linear. Pass model.parameters()',
  ],
  [
    'new optim.AdamW(model.parameters)',
    () => new optim.AdamW(makeModel().parameters),
    'got the function parameters. Pass model.parameters()',
  ],
  [
    'new optim.AdamW(model.namedParameters())',
    () => new optim.AdamW(makeModel().namedParameters()),
    'without names.',
  ],
  [
    'new optim.AdamW(p, { learningRate: 1 })',
    () => new optim.AdamW(makeModel().parameters(), { learningRate: 1 }),
    'got "learningRate". Did you mean "lr"?',
  ],
  [
    "new optim.AdamW(p, { lr: '1e-3' })",
    () => new optim.AdamW(makeModel().parameters(), { lr: '1e-3' }),
    'AdamW lr: expected a finite number of at least 0, got "1e-3".',
  ],
  [
    'new optim.AdamW(p, { betas: 0.9 })',
    () => new optim.AdamW(makeModel().parameters(), { betas: 0.9 }),
    'AdamW betas: expected a list of two numbers, got 0.9.',
  ],
  [
    'a group { weigth_decay: 0.1 }',
    () => new optim.AdamW([{ params: makeModel().parameters(), weigth_decay: 0.1 }]),
    'AdamW group 0: expected the options params, lr, betas, eps, weightDecay, got "weigth_decay". Did you mean "weightDecay"?',
  ],
  [
    'new optim.WarmupLr({ maxLr: undefined })',
    () => new optim.WarmupLr({}),
    'WarmupLR maxLr: expected a finite number, got undefined.',
  ],
  ['initialize(model, config)', () => ds.initialize(makeModel(), config), 'initialize: expected'],
  [
    'initialize({ model: Linear })',
    () => ds.initialize({ model: nn.Linear, config, device }),
    'the class Linear itself',
  ],
  [
    'initialize({ model, conf })',
    () => ds.initialize({ model: makeModel(), conf: config }),
    'Did you mean "config"?',
  ],
  [
    "config: { optimizer: 'AdamW' }",
    () => withEngine(() => {}, { optimizer: 'AdamW' }),
    'optimizer',
  ],
  [
    'config: { zero_optimisation: .. }',
    () =>
      ds.initialize({
        model: makeModel(),
        config: { ...config, zero_optimisation: { stage: 1 } },
        strict: true,
        device,
      }),
    'zero_optimization',
  ],
  [
    'engine.forward([[1, 2]])',
    () => withEngine((engine) => engine.forward([[1, 2]])),
    'linear: expected a tensor, got an array [[..]].',
  ],
  [
    'f32 into a bf16 engine',
    () => withEngine((engine) => engine.forward(x()), { bf16: { enabled: true } }),
    "Cast the input: .to('bf16').",
  ],
  ['engine.step() first', () => withEngine((engine) => engine.step()), 'engine.step'],
  [
    'engine.backward(logits)',
    () => withEngine((engine) => engine.backward(engine.forward(x()))),
    'engine.backward',
  ],
  [
    'engine.saveCheckpoint(dir, { clientstate })',
    () => withEngine((engine) => engine.saveCheckpoint(folder, { clientstate: {} })),
    'Did you mean "clientState"?',
  ],
  [
    'engine.loadCheckpoint(an empty folder)',
    () => withEngine((engine) => engine.loadCheckpoint(folder)),
    'expected a file "latest", got a folder without checkpoints.',
  ],
  [
    'new data.DataLoader([1, 2, 3])',
    () => new data.DataLoader([1, 2, 3]),
    'a dataset: an object with length and get(index)',
  ],
  [
    'new data.DataLoader(set, { batchsize: 2 })',
    () => new data.DataLoader({ length: 2, get: Number }, { batchsize: 2 }),
    'Did you mean "batchSize"?',
  ],
  [
    'new data.DataLoader(set, { batchSize: 1.5 })',
    () => new data.DataLoader({ length: 2, get: Number }, { batchSize: 1.5 }),
    'DataLoader batchSize: expected an integer of at least 1, got 1.5.',
  ],
];

afterAll(() => rmSync(folder, { recursive: true, force: true }));

describe.each([
  ['tensors', tensors],
  ['modules', modules],
  ['training', training],
])('%s', (_, mistakes) => {
  test.each(mistakes.map((mistake) => [...mistake] as const))(
    '%s',
    async (_typed, run, message) => {
      let thrown: unknown = null;
      try {
        await run();
      } catch (error) {
        thrown = error;
      }
      assert.ok(thrown instanceof DsError, `not a DsError: ${thrown}`);
      const text = (thrown as Error).message;
      assert.ok(text.includes(message), text);
    },
  );
});

test('correct calls of newcomers work without type annotations', async () => {
  const group = { params: makeModel().parameters(), weight_decay: 0.1 };
  assert.equal(new optim.AdamW([group], { learning_rate: undefined }).groups[0].weightDecay, 0.1);
  assert.deepEqual(x().reshape(4).shape, [4]);
  assert.deepEqual(ds.where(x().gt(2), 1, 0).toArray(), [0, 0, 1, 1]);
  const stacked = new nn.Sequential([makeModel(), new nn.ReLU()]);
  assert.deepEqual(Object.keys(stacked.stateDict()), ['0.weight', '0.bias']);
  class Heads extends nn.Module {
    named = { first: makeModel(), deeper: [new Map([['second', makeModel()]])] };
    forward(): void {}
  }
  const names = [...new Heads().namedParameters()].map(([name]) => name);
  const expected = ['named.first.weight', 'named.first.bias'];
  assert.deepEqual(names, [
    ...expected,
    'named.deeper.0.second.weight',
    'named.deeper.0.second.bias',
  ]);
  class Loop extends nn.Module {
    self: unknown = this;
    forward(): void {}
  }
  assert.throws(() => new Loop().parameters(), /self: expected modules below a module/);
});
