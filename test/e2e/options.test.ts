// Tests that options of classes and functions throw a DsError for an unknown name and a wrong type.
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import * as library from '../../lib/index.js';
import { DynamicLossScaler, StaticLossScaler } from '../../lib/optim/loss-scale.js';
import { thrownBy } from '../support/refusal.js';

// biome-ignore lint/suspicious/noExplicitAny: in JavaScript no types stop these mistakes.
type Untyped = any;
const ds = library as Untyped;
const { checkpointing, comm, data, monitor, nn, optim, profiler, Tensor } = ds;

const folder = mkdtempSync(join(tmpdir(), 'ds-options-'));
const text = join(folder, 'text.txt');
writeFileSync(text, 'some text');
const encode = (from: string) => [...Buffer.from(from)];
const linear = () => new nn.Linear(2, 2);
let job: Untyped;
beforeAll(async () => {
  job = await comm.initDistributed({ device: 'cpu' });
});
afterAll(async () => {
  await job.destroy();
  rmSync(folder, { recursive: true, force: true });
});

/** The code of the mistake, the call, and a part of the message. */
type Mistake = readonly [typed: string, run: () => unknown, message: string];

const collectives: readonly Mistake[] = [
  [
    'allReduce(t, { ops })',
    () => job.world.allReduce(Tensor.from([1]), { ops: 'sum' }),
    'Did you mean "op"?',
  ],
  [
    'allReduce(t, null)',
    () => job.world.allReduce(Tensor.from([1]), null),
    'allReduce: expected an object of options, such as { op: ... }, got null.',
  ],
  [
    'broadcast(t, 0, { output })',
    () => job.world.broadcast(Tensor.from([1]), 0, { output: Tensor.from([1]) }),
    'broadcast: expected the options op, stream, purpose, label, got "output".',
  ],
  [
    'new CommsLogger({ op })',
    () => new comm.CommsLogger({ op: [] }),
    'CommsLogger: expected the options profAll, ops, verbose, got "op".',
  ],
];

const watching: readonly Mistake[] = [
  [
    'getModelProfile(m, [x], { warmup })',
    () => profiler.getModelProfile(linear(), [], { warmup: 2 }),
    'Did you mean "warmUp"?',
  ],
  [
    'getModelProfile(m, { inputs })',
    () => profiler.getModelProfile(linear(), { inputs: [] } as unknown as unknown[]),
    'getModelProfile inputs: expected a list of the arguments of model.call(), got an object { inputs }.',
  ],
  [
    'getModelProfile(m, [x], { warmUp: -1 })',
    () => profiler.getModelProfile(linear(), [], { warmUp: -1 }),
    'getModelProfile warmUp: expected an integer of at least 0, got -1.',
  ],
  [
    'printProfile(p, { topModule })',
    () => profiler.printProfile({}, { topModule: 3 }),
    'printProfile: expected the options outputFile, moduleDepth, topModules, detailed, recomputeFwdFactor',
  ],
  [
    'printProfile(p, { outputFile: 3 })',
    () => profiler.printProfile({}, { outputFile: 3 }),
    'printProfile outputFile: expected a string, got 3.',
  ],
  [
    'formatProfile(p, { topModules: 0 })',
    () => profiler.formatProfile({}, { topModules: 0 }),
    'formatProfile topModules: expected an integer of at least 1, got 0.',
  ],
  [
    'new CsvMonitor({ path })',
    () => new monitor.CsvMonitor({ path: folder }),
    'CsvMonitor: expected the options outputPath, jobName, got "path".',
  ],
  [
    'new TensorBoardMonitor without jobName',
    () => new monitor.TensorBoardMonitor({ output_path: folder }),
    'TensorBoardMonitor jobName: expected a string, got undefined.',
  ],
  [
    'new ConsoleMonitor({ every: 0 })',
    () => new monitor.ConsoleMonitor({ every: 0 }),
    'ConsoleMonitor every: expected an integer of at least 1, got 0.',
  ],
  [
    'resolveConfig({})',
    () => ds.resolveConfig({ train_batch_size: 1 }),
    'resolveConfig worldSize: expected an integer of at least 1, got undefined.',
  ],
  [
    'resolveConfig({}, { world_size, stric })',
    () => ds.resolveConfig({ train_batch_size: 1 }, { world_size: 1, stric: true }),
    'Did you mean "strict"?',
  ],
  [
    'new ProgressBar({ steps: 10 })',
    () => new monitor.ProgressBar({ steps: 10 }),
    'ProgressBar: expected the options total, stream, lines, flopsPerToken, peakFlops, now, got "steps".',
  ],
  [
    'new ProgressBar({})',
    () => new monitor.ProgressBar({}),
    'ProgressBar total: expected an integer of at least 0, got undefined.',
  ],
];

const datasets: readonly Mistake[] = [
  [
    'new TokenDataset([1, 2, 3], 1)',
    () => new data.TokenDataset([1, 2, 3], 1),
    'TokenDataset: expected tokens as an Int32Array, got an array [1, 2, 3]. Int32Array.from(tokens) makes one.',
  ],
  [
    'TokenDataset.fromText(path)',
    () => data.TokenDataset.fromText(text),
    'TokenDataset.fromText: expected an object of options, such as { path: ... }',
  ],
  [
    'TokenDataset.fromText({ encoder })',
    () => data.TokenDataset.fromText({ path: text, seq: 2, encoder: encode }),
    'Did you mean "encode"?',
  ],
  [
    'TokenDataset.fromText without encode',
    () => data.TokenDataset.fromText({ path: text, seq: 2 }),
    'TokenDataset.fromText encode: expected a function, got undefined.',
  ],
  [
    "TokenDataset.fromText({ match: '*.txt' })",
    () => data.TokenDataset.fromText({ path: folder, seq: 2, encode, match: '*.txt' }),
    'TokenDataset.fromText match: expected a regular expression, got "*.txt".',
  ],
  [
    'TokenDataset.fromJsonl({ field })',
    () => data.TokenDataset.fromJsonl({ path: text, seq: 2, encode, field: 'text' }),
    'TokenDataset.fromJsonl: expected the options path, key, encode, seq, endOfText, got "field".',
  ],
  [
    'TokenFileDataset.open({ file })',
    () => data.TokenFileDataset.open({ file: text, seq: 2 }),
    'TokenFileDataset.open: expected the options path, seq, dtype, got "file".',
  ],
  [
    'TokenFileDataset.openIndexed({ seq })',
    () => data.TokenFileDataset.openIndexed({ seq: 2 }),
    'TokenFileDataset.openIndexed path: expected a string, got undefined.',
  ],
  [
    'workerDataset({ modul })',
    () => data.workerDataset({ modul: './x.js' }),
    'Did you mean "module"?',
  ],
  [
    'workerDataset({ args: 3 })',
    () => data.workerDataset({ module: '/x.js', args: 3 }),
    'workerDataset args: expected a list of arguments, got 3.',
  ],
];

const state = () => ({ weight: Tensor.from([[1, 2]]), bias: Tensor.from([1]) });
const modules: readonly Mistake[] = [
  [
    'configure({ cpuCheckpoint })',
    () => checkpointing.configure({ cpuCheckpoint: true }),
    'Did you mean "cpuCheckpointing"?',
  ],
  [
    "configure({ cpu_checkpointing: 'yes' })",
    () => checkpointing.configure({ cpu_checkpointing: 'yes' }),
    'checkpointing.configure cpuCheckpointing: expected true or false, got "yes".',
  ],
  [
    'configure(null)',
    () => checkpointing.configure(null),
    'checkpointing.configure: expected an object of options',
  ],
  [
    'loadStateDict(s, false)',
    () => new nn.Linear(2, 1).loadStateDict(state(), false),
    'loadStateDict: expected an object of options, such as { strict: ... }, got false.',
  ],
  [
    'loadStateDict(s, { strickt })',
    () => new nn.Linear(2, 1).loadStateDict(state(), { strickt: false }),
    'Did you mean "strict"?',
  ],
  [
    'loadStateDict({ weight: [1, 2] })',
    () => new nn.Linear(2, 1).loadStateDict({ ...state(), weight: [1, 2] }),
    'loadStateDict weight: expected a tensor, got an array [1, 2].',
  ],
  [
    'loadStateDict(a Map)',
    () => new nn.Linear(2, 1).loadStateDict(new Map(Object.entries(state()))),
    'Convert a Map with Object.fromEntries(state).',
  ],
  [
    'new CausalSelfAttention(10, 3)',
    () => new nn.CausalSelfAttention(10, 3),
    'CausalSelfAttention channels: expected a multiple of the 3 heads, got 10.',
  ],
  [
    'new CausalSelfAttention(12)',
    () => new nn.CausalSelfAttention(12),
    'CausalSelfAttention heads: expected an integer of at least 1, got undefined.',
  ],
  [
    'new LinearGelu(2, 2, { biass })',
    () => new nn.LinearGelu(2, 2, { biass: false }),
    'LinearGelu: expected the options bias, weightInit, biasInit, got "biass". Did you mean "bias"?',
  ],
  [
    'new Linear(2, 2, { bias: 0 })',
    () => new nn.Linear(2, 2, { bias: 0 }),
    'Linear bias: expected true or false, got 0.',
  ],
  [
    "sum(t, { keepDim: 'false' })",
    () => ds.sum(Tensor.from([1]), { keepDim: 'false' }),
    'sum keepDim: expected true or false, got "false".',
  ],
  [
    'new Conv2d(2, 2, 1, { bias: 0 })',
    () => new nn.Conv2d(2, 2, 1, { bias: 0 }),
    'Conv2d bias: expected true or false, got 0.',
  ],
  [
    'new Linear(2, 2, { weightInit: 0.1 })',
    () => new nn.Linear(2, 2, { weightInit: 0.1 }),
    'Linear weightInit: expected a function, got 0.1.',
  ],
  [
    "model.to('float16')",
    () => linear().to('float16'),
    `Module.to: expected a dtype (f32, f16, bf16, i32, i64, u8, bool, f64) or a device`,
  ],
  ["model.to('float16'), what to do", () => linear().to('float16'), `"float16" is 'f16' here.`],
  [
    "model.to('i32')",
    () => linear().to('i32'),
    'Module.to: expected a floating dtype: f32, f16, bf16, f64, got i32.',
  ],
];

const optimizers: readonly Mistake[] = [
  [
    'new DynamicLossScaler({ windw })',
    () => new DynamicLossScaler({ windw: 3 } as object),
    'Did you mean "window"?',
  ],
  [
    'new DynamicLossScaler({ window: 0 })',
    () => new DynamicLossScaler({ window: 0 }),
    'DynamicLossScaler window: expected an integer of at least 1, got 0.',
  ],
  [
    'new StaticLossScaler(0)',
    () => new StaticLossScaler(0),
    'StaticLossScaler scale: expected a finite number',
  ],
  [
    'a group with a momentum for AdamW',
    () => new optim.AdamW([{ params: linear().parameters(), momentum: 0.9 }]),
    'AdamW group 0: expected the options params, lr, betas, eps, weightDecay, got "momentum".',
  ],
  [
    'a group { weightDeacy }',
    () => new optim.AdamW([{ params: linear().parameters(), weightDeacy: 0.1 }]),
    'Did you mean "weightDecay"?',
  ],
];

describe.each([
  ['collectives', collectives],
  ['watching', watching],
  ['datasets', datasets],
  ['modules', modules],
  ['optimizers', optimizers],
])('%s', (_, mistakes) => {
  test.each(mistakes)('%s', (_typed, run, message) => {
    expect(thrownBy(run).message).toContain(message);
  });
});

test.each([
  ['AdamW', (groups: Untyped) => new optim.AdamW(groups)],
  ['Lion', (groups: Untyped) => new optim.Lion(groups)],
])('%s: a group keeps fields of the user next to its hyperparameters', async (_name, make) => {
  const model = linear();
  const layers = { depth: 3 };
  const group = { params: model.parameters(), weight_decay: 0.25, name: 'decayed', layers };
  const optimizer = make([group]);
  const [made] = optimizer.groups;
  expect([made.name, made.layers, made.weightDecay]).toEqual(['decayed', layers, 0.25]);
  expect(Object.keys(made)).not.toEqual(expect.arrayContaining(['name']));
  const config = { train_micro_batch_size_per_gpu: 1 };
  const { engine } = await ds.initialize({ model, optimizer, config, device: 'cpu' });
  await engine.saveCheckpoint(folder);
  await engine.loadCheckpoint(folder);
  expect(optimizer.groups[0].name).toBe('decayed');
  engine.destroy();
});

test('Muon: groups that are split by rule keep fields of the user too', () => {
  const model = linear();
  const groups = optim.makeMuonGroups(model.namedParameters());
  const named = groups.map((group: object, index: number) => ({ ...group, name: `g${index}` }));
  const result = new optim.Muon(named).groups;
  expect(result.map(({ name }: { name: string }) => name)).toEqual(['g0', 'g1']);
});

test.each([
  [{ lr_scheduler: 1 }, 'initialize lrScheduler: expected a schedule, with lr(), apply(), '],
  [
    { lrScheduler: () => [{}] },
    'initialize lrScheduler: expected a schedule, with lr(), apply(), ',
  ],
  [
    { optimizer: {} },
    'initialize optimizer: expected an optimizer, with declareState(), update(), got ',
  ],
  [
    { optimizer: () => 'Adam' },
    'initialize optimizer: expected an optimizer, with declareState(), update()',
  ],
  [
    { optimizer: { declareState: () => ({}), update() {} } },
    'initialize optimizer: expected an optimizer with groups: a list of at least one { params, .. }',
  ],
  [
    { optimizer: { declareState: () => ({}), update() {}, groups: [{ lr: 1 }] } },
    'initialize optimizer: expected an optimizer with groups: a list of at least one { params, .. }',
  ],
  [{ optimizer: optim.AdamW }, 'got the class AdamW. Pass new AdamW(..), or (given) => new AdamW('],
  [
    { lrScheduler: class Own {} },
    'initialize lrScheduler: expected an object, or a function that returns',
  ],
  [
    { lrScheduler: { lr: () => 1, apply() {}, stateDict: () => ({}) } },
    'initialize lrScheduler: expected a schedule, with lr(), apply(), stateDict(), loadStateDict()',
  ],
  [{ distributed: {} }, 'initialize distributed: expected a job from initDistributed()'],
  [{ constructor: 1 }, 'initialize: expected the options model, '],
  [{ monitors: 1 }, 'initialize monitors: expected a list of monitors, got 1.'],
  [{ monitors: [{}] }, 'initialize monitors: expected a monitor, with write(), flush(), close()'],
  [{ collate: 1 }, 'initialize collate: expected a function, got 1.'],
  [{ collate: () => 0 }, 'initialize collate: expected trainingData, got'],
  [{ numWorkers: 2, trainingData: null }, 'initialize numWorkers: expected trainingData, got'],
  [{ trainingData: 0 }, 'initialize trainingData: expected a dataset'],
  [{ strict: 'no' }, 'initialize strict: expected true or false, got "no".'],
])('initialize() with a wrong client: %#', async (wrong, message) => {
  const config = { train_micro_batch_size_per_gpu: 1, optimizer: { type: 'SGD' } };
  const result = ds.initialize({ model: linear(), device: 'cpu', config, ...wrong });
  await expect(result).rejects.toMatchObject({ code: 'DS_ARGUMENT' });
  await expect(result).rejects.toThrow(message);
});
