// Tests that methods throw a DsError for wrong arguments from plain JavaScript, instead of failing
// inside or accepting them.
import * as library from '../../lib/index.js';
import { openEvalData } from '../../lib/trainer/eval-data.js';
import { refusal } from '../support/refusal.js';

// biome-ignore lint/suspicious/noExplicitAny: in JavaScript no types stop these mistakes.
type Untyped = any;
const { data, initialize, initDistributed, nn, optim, routeTopK, Tensor } = library as Untyped;
const { cpu, parseConfigArguments } = library as Untyped;

const linear = () => new nn.Linear(2, 2);
const square = () =>
  Tensor.from([
    [1, 2],
    [3, 4],
  ]);
let engine: Untyped;
let job: Untyped;
beforeAll(async () => {
  job = await initDistributed({ device: 'cpu' });
  const config = { train_micro_batch_size_per_gpu: 1, optimizer: { type: 'SGD', params: {} } };
  ({ engine } = await initialize({ model: linear(), device: 'cpu', config }));
});
afterAll(async () => {
  engine.destroy();
  await job.destroy();
});

/** The code of the mistake, the call, and a part of the message. */
type Mistake = readonly [typed: string, run: () => unknown, message: string];

const modules: readonly Mistake[] = [
  ['m.apply(5)', () => linear().apply(5), 'Module.apply: expected a function, got 5.'],
  ['m.train(5)', () => linear().train(5), 'Module.train: expected true or false, got 5.'],
  ['m.train(null)', () => linear().train(null), 'Module.train: expected true or false, got null.'],
  [
    "m.requiresGrad_('no')",
    () => linear().requiresGrad_('no'),
    'Module.requiresGrad_: expected true or false, got "no".',
  ],
  ...[
    'registerForwardPreHook',
    'registerForwardHook',
    'registerFullBackwardHook',
    'registerFullBackwardPreHook',
    'registerStateDictPreHook',
  ].map(
    (name): Mistake => [
      `m.${name}(5)`,
      () => linear()[name](5),
      `Module.${name}: expected a function, got 5.`,
    ],
  ),
  ['Conv1d of a list', () => new nn.Conv1d(1, 1, 1).call([[1]]), 'Conv1d: expected a tensor, got'],
  ['Conv2d()', () => new nn.Conv2d(1, 1, 1).call(), 'Conv2d: expected a tensor, got undefined.'],
  [
    'Dropout1d()',
    () => new nn.Dropout1d(0.5).call(),
    'Dropout1d: expected a tensor, got undefined',
  ],
  ['Dropout2d(-3)', () => new nn.Dropout2d(0.5).call(-3), 'Dropout2d: expected a tensor, got -3.'],
  [
    'w.initialize(nn.init.zeros())',
    () => linear().weight.initialize(nn.init.zeros()),
    'nn.init: expected a tensor to write into, got undefined. nn.init.zeros and nn.init.ones are',
  ],
  ['Flatten of a list', () => new nn.Flatten().call([1]), 'Flatten: expected a tensor, got an'],
  ['GroupNorm(3)', () => new nn.GroupNorm(1, 2).call(3), 'GroupNorm: expected a tensor, got 3.'],
  [
    'MultiheadAttention of a list',
    () => new nn.MultiheadAttention(2, 1).call([1], [1], [1]),
    'MultiheadAttention: expected a tensor, got an array [1].',
  ],
];

const tensors: readonly Mistake[] = [
  ['x.unflatten(0)', () => square().unflatten(0), 'unflatten: expected sizes, a list of integers'],
  ['x.unflatten(0, 2)', () => square().unflatten(0, 2), 'got 2. Sizes are a list: [2].'],
  ['x.unflatten(0, [null])', () => square().unflatten(0, [null]), 'unflatten: expected sizes'],
  [
    'x.size([1])',
    () => square().size([1]),
    'size: expected a dim of [2, 2] f32, got an array [1].',
  ],
  ["x.size('1')", () => square().size('1'), 'size: expected a dim of [2, 2] f32, got "1".'],
  [
    "x.requireGrad('no')",
    () => square().requireGrad('no'),
    'requireGrad: expected true or false, got "no".',
  ],
  ['routeTopK()', () => routeTopK(), 'routeTopK: expected a tensor, got undefined.'],
  [
    'routeTopK(x)',
    () => routeTopK(square()),
    'routeTopK: expected options { k, normalize }, got undefined.',
  ],
  [
    'routeTopK(x, 2)',
    () => routeTopK(square(), 2),
    'routeTopK: expected options { k, normalize }, got 2.',
  ],
  [
    'routeTopK(x, { k })',
    () => routeTopK(square(), { k: 1 }),
    'routeTopK normalize: expected true or false, got undefined.',
  ],
];

const engines: readonly Mistake[] = [
  [
    "engine.setTrainBatchSize('8')",
    () => engine.setTrainBatchSize('8'),
    'engine.setTrainBatchSize: expected a positive multiple of 1, got "8".',
  ],
  ['engine.setTrainBatchSize(true)', () => engine.setTrainBatchSize(true), 'got true.'],
  ['engine.setTrainBatchSize([8])', () => engine.setTrainBatchSize([8]), 'got an array [8].'],
  [
    "engine.setTrainMicroBatchSize('8')",
    () => engine.setTrainMicroBatchSize('8'),
    'engine.setTrainMicroBatchSize: expected a positive integer, got "8".',
  ],
  [
    "engine.expectScaled('8')",
    () => engine.expectScaled('8'),
    'engine.expectScaled: expected a finite number above 0, got "8".',
  ],
  ['engine.expectScaled(0)', () => engine.expectScaled(0), 'a finite number above 0, got 0.'],
  [
    'optimizer.step(5)',
    () => new optim.AdamW(linear().parameters()).step(5),
    'AdamW.step: expected a function, got 5.',
  ],
];

const groups: readonly Mistake[] = [
  ['newGroup(2)', () => job.newGroup(2), 'newGroup: expected different ranks from 0 to 0, got 2.'],
  ['newGroup()', () => job.newGroup(), 'newGroup: expected different ranks'],
  [
    'allReduce([1])',
    () => job.world.allReduce([1]),
    'allReduce: expected a tensor, got an array [1].',
  ],
  ...['broadcast', 'reduce', 'send', 'recv'].map(
    (name): Mistake => [
      `${name}([1])`,
      () => job.world[name]([1], 0),
      `${name}: expected a tensor, got an array [1].`,
    ],
  ),
  ...['allGather', 'allToAll', 'reduceScatter'].map(
    (name): Mistake => [
      `${name}(x)`,
      () => job.world[name](square()),
      `${name}: expected a tensor, got undefined.`,
    ],
  ),
];

const samples = { length: 4, get: (i: number) => i };
const state = 'a state that stateDict() returned, got undefined.';
const PLAIN = 'parseConfigArguments: expected words, as of process.argv.slice(2), got';
const calls: readonly Mistake[] = [
  ['collate(x, cpu)', () => data.collate([1, 2], cpu), 'device: expected "cpu", "cuda",'],
  ['parseConfigArguments(ns)', () => parseConfigArguments([0, 1]), `${PLAIN} an array [0, 1].`],
  [
    'loadBalancingLoss(x)',
    () => nn.loadBalancingLoss({ mask: null, layers: [square()] }),
    'loadBalancingLoss tokens: expected an integer of at least 0, got undefined.',
  ],
  ...['StepLr', 'LambdaLr', 'ReduceLrOnPlateau'].map(
    (name): Mistake => [
      `new ${name}(optimizer, options)`,
      () => new optim[name](new optim.AdamW(linear().parameters()), { stepSize: 2 }),
      'expected only its options, got an optimizer. Pass both to initialize({ optimizer, lrScheduler })',
    ],
  ),
];

const states: readonly Mistake[] = [
  ...[
    new data.RandomSampler(4),
    new data.SequentialSampler(4),
    new data.DistributedSampler(4, { rank: 0, worldSize: 1 }),
    new data.DataLoader(samples, { batchSize: 2 }),
    new data.IterableLoader({ iterate: () => [1, 2] }, { batchSize: 2 }),
  ].map((item: Untyped): Mistake => {
    const { name: kind } = item.constructor;
    const name = `${kind.endsWith('Sampler') ? 'Sampler' : kind}.loadStateDict`;
    return [
      `${kind}.loadStateDict()`,
      () => item.loadStateDict(undefined),
      `${name}: expected ${state}`,
    ];
  }),
];

/** Iterates a loader over a dataset with an iterate() that yields `given`. */
const serveGiven = (options: unknown) => () => [
  ...new data.IterableLoader({ iterate: () => options }, { batchSize: 2 }),
];
const iterated: readonly Mistake[] = [
  ...[undefined, null, 5, {}, { [Symbol.iterator]: 5 }].map(
    (input): Mistake => [
      `iterate() that gives ${String(input)}`,
      serveGiven(input),
      'IterableLoader, sample 0 of epoch 0: expected iterate() to return an iterable',
    ],
  ),
  ['iterate() that gives a text', serveGiven('ab'), 'an async iterable of samples, got "ab".'],
  ['an async iterate()', serveGiven(Promise.resolve([1])), 'got a promise (is an await missing?).'],
  [
    'an iterator that is none',
    serveGiven({ [Symbol.iterator]: () => 5 }),
    'expected an iterator with next(), got 5.',
  ],
  [
    'iterate() of data that are judged',
    () => openEvalData({ iterate: () => 5 } as Untyped, {} as Untyped, {} as Untyped),
    'iterate(): expected iterate() to return an iterable',
  ],
  [
    'next() that gives nothing',
    serveGiven({ [Symbol.iterator]: () => ({ next: () => undefined }) }),
    'expected next() to return { value, done }, got undefined.',
  ],
];

test.each([...modules, ...tensors, ...engines, ...groups, ...calls, ...states, ...iterated])(
  '%s refuses wrong arguments with a DsError',
  async (_typed, run, message) => {
    expect((await refusal(run)).message).toContain(message);
  },
);
