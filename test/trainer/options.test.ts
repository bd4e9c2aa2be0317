// Tests the options of a Trainer: the error for each wrong one, and the defaults.
import { nn } from '../../lib/index.js';
import { EVENT_TYPES } from '../../lib/trainer/events.js';
import { OwnSchedule, resolveSteps } from '../../lib/trainer/own-schedule.js';
import { readTrainerOptions } from '../../lib/trainer/read-options.js';
import { thrownBy } from '../support/refusal.js';

const model = new nn.Linear(2, 1);
const train = { length: 4, get: () => Float32Array.of(1, 2) };

type Bad = [options: object, message: string];

const wrong: readonly Bad[] = [
  [{ learningRte: 1 }, '"learningRte"'],
  [{ num_train_epochs: 1 }, '"num_train_epochs"'],
  [{ model: {} }, 'Trainer model: expected an object of a class that extends nn.Module'],
  [{ train: [1, 2] }, 'For an array: { length: list.length, get: (i) => list[i] }.'],
  [{ epochs: 0 }, 'Trainer epochs: expected a finite number above 0, got 0'],
  [{ maxSteps: 1.5 }, 'Trainer maxSteps: expected an integer of at least 1, got 1.5'],
  [{ batchSize: 0 }, 'Trainer batchSize'],
  [{ accumulation: '2' }, 'Trainer accumulation'],
  [{ lr: -1 }, 'Trainer lr'],
  [
    { warmup: 1.5 },
    'Trainer warmup: expected a number of updates, or a fraction of all updates below 1',
  ],
  [{ betas: [0.9, 1] }, 'Trainer betas: expected a finite number of at least 0 and below 1'],
  [{ betas: 0.9 }, 'Trainer betas: expected two numbers'],
  [{ labelSmoothing: 1 }, 'Trainer labelSmoothing'],
  [{ schedule: 'cosin' }, 'Trainer schedule: expected linear, cosine,'],
  [{ schedule: null }, 'Trainer schedule: expected linear, cosine,'],
  [{ schedule: 'reduce_lr_on_plateau' }, 'Give `lrScheduler` an optim.ReduceLrOnPlateau.'],
  [
    { schedule: { type: 'linear', cycles: 2 } },
    '"linear": expected minLr, minLrRate, got "cycles"',
  ],
  [{ schedule: { type: 'constant', minLr: 1 } }, 'expected no options, got "minLr"'],
  [{ schedule: { type: 'cosine', minLr: 0, minLrRate: 0.1 } }, 'either minLr or minLrRate, got'],
  [
    { schedule: { type: 'cosine', minLrRate: 1.5 } },
    'schedule minLrRate: expected a finite number',
  ],
  [
    { schedule: { type: 'warmup_stable_decay', decayType: 'sqrt' } },
    'schedule decayType: expected "linear", "cosine", "1-sqrt", got "sqrt"',
  ],
  [
    { lr: 1e-3, schedule: { type: 'cosine', minLr: 1e-2 } },
    'Trainer schedule minLr: expected at most 0.001, the rate that falls, got 0.01',
  ],
  [{ schedule: { type: 'linear', minLr: 1e-4 } }, 'minLr: expected at most 0.00005'],
  [{ precision: 'tf32' }, 'Trainer precision: expected "fp32", "fp16", "bf16", got "tf32"'],
  [{ loss: 1 }, 'Trainer loss: expected a function'],
  [{ data: { sampling: 'grouped' } }, 'Trainer data.sampling: expected "random", "sequential"'],
  [{ data: { shuffle: true } }, '"shuffle"'],
  [
    { log: { every: 0 } },
    'Trainer log.every: expected a number of updates, a fraction of all updates',
  ],
  [{ eval: {} }, 'Trainer eval.data'],
  [
    { eval: { ...train, length: 0 } },
    'Trainer eval.data: expected evaluation data with samples, or no `eval`',
  ],
  [{ eval: { data: { ...train, length: 0 } } }, 'got no samples'],
  [{ eval: { data: train, every: 'best' } }, 'Trainer eval.every'],
  [{ eval: { data: train, maxBatches: 0 } }, 'Trainer eval.maxBatches'],
  [{ save: { dir: 1 } }, 'Trainer save.dir: expected a string'],
  [{ num_train_epochs: 1 }, 'Did you mean "epochs"?'],
  [{ output_dir: 'out' }, 'Did you mean "save.dir"?'],
  [{ perDeviceEvalBatchSize: 1 }, 'Did you mean "eval.batchSize"?'],
  [{ save: { save_total_limit: 1 } }, 'Did you mean "keep"?'],
  [{ save: { dir: 'd', every: 'never' } }, 'or "best", got "never"'],
  [{ save: { dir: 'd', best: 'loss' } }, 'Trainer save.best: expected the option `eval`'],
  [{ save: { dir: 'd', every: 'best' } }, 'Trainer save.every: expected a `save.best`'],
  [{ eval: train, save: { dir: 'd', best: 'f1' } }, 'or a name that `eval.metrics` gives'],
  [{ eval: { data: train, accuracy: 1 } }, 'Trainer eval.accuracy: expected true or false'],
  [
    { eval: { data: train, accuracy: true }, loss: () => model },
    'Trainer eval.accuracy: expected the loss of the model itself',
  ],
  [{ eval: train, save: { dir: 'd', best: 'accuracy' } }, '"accuracy" by `eval.accuracy`'],
  [{ save: { dir: 'd', weights: false, weightsOnly: true } }, 'Trainer save.weights'],
  [{ earlyStop: { patience: 1 } }, 'Trainer earlyStop: expected `save.best`'],
  [{ earlyStop: { patience: 0 } }, 'Trainer earlyStop.patience'],
  [{ report: 'tensorboard' }, 'Trainer report: expected a list'],
  [{ report: ['tensorboard'] }, 'the option save.dir'],
  [{ report: ['wandb'] }, '`wandb sync` takes the files of "tensorboard".'],
  [{ callbacks: [{ onLog: () => {} }] }, '"onLog"'],
  [{ callbacks: [{ log: 1 }] }, 'Trainer callbacks log: expected a function'],
  [{ tokenizer: {} }, 'Trainer tokenizer: expected a text.Tokenizer'],
  [{ deepspeed: [] }, 'Trainer deepspeed: expected the path of a ds_config.json'],
  [{ seed: -1 }, 'Trainer seed'],
];

test.each(wrong)('%j is refused', (options, message) => {
  const error = thrownBy(() => readTrainerOptions({ model, train, ...options } as never));
  expect(error.message).toContain(message);
  expect(error.code).toBe('DS_ARGUMENT');
});

test('omitted options have the defaults of transformers, or better ones that the docs name', () => {
  const settings = readTrainerOptions({ model, train, weight_decay: 0.1 } as never);
  expect(settings).toMatchObject({
    epochs: 3,
    maxSteps: null,
    batchSize: 8,
    accumulation: 1,
    lr: 5e-5,
    warmup: 0,
    weightDecay: 0.1,
    betas: [0.9, 0.999],
    eps: 1e-8,
    maxGradNorm: 1,
    seed: 42,
    data: { sampling: 'random', dropLast: false, seed: 42, workers: 0 },
    log: { every: 10, first: false, nanFilter: false },
    eval: null,
    save: null,
    earlyStop: null,
    report: [],
    progress: true,
  });
  expect(settings.schedule).toBe('linear');
});

test('`eval: data` evaluates after each epoch, `save: folder` saves checkpoints', () => {
  const settings = readTrainerOptions({ model, eval: train, save: 'out', batchSize: 3 });
  expect(settings.eval).toMatchObject({ data: train, every: 'epoch', batchSize: 3 });
  expect(settings.save).toMatchObject({ dir: 'out', every: 500, keep: null, best: null });
});

test('the best checkpoint has the lowest loss or the highest other metric', () => {
  const metrics = () => ({});
  const of = (best: string) =>
    readTrainerOptions({ model, eval: { data: train, metrics }, save: { dir: 'd', best } }).save;
  expect(of('eval_loss')?.best).toEqual({ metric: 'loss', greaterIsBetter: false, load: true });
  expect(of('f1')?.best).toEqual({ metric: 'f1', greaterIsBetter: true, load: true });
});

test('every type of event reaches a listener', () => {
  const types = [
    'begin',
    'step',
    'log',
    'evaluate',
    'save',
    'epoch',
    'rollout',
    'alert',
    'end',
    'any',
  ];
  expect(Object.keys(EVENT_TYPES)).toEqual(types);
});

test('steps are a number, or a fraction of all updates', () => {
  expect([
    resolveSteps(0.03, 100),
    resolveSteps(0.031, 100),
    resolveSteps(7, 100),
    resolveSteps(0, 100),
  ]).toEqual([3, 4, 7, 0]);
});

/** Values by the formulas of transformers' optimization.py, for 4 warm-up steps of 20. */
const span = { lr: 1, warmupSteps: 4, totalSteps: 20 };
const at = [0, 2, 4, 8, 12, 16, 19, 20];
const half = (part: number): number => 0.5 * (1 + Math.cos(Math.PI * part));
const curves: readonly [ConstructorParameters<typeof OwnSchedule>[0], number[]][] = [
  ['linear', [0, 0.5, 1, 0.75, 0.5, 0.25, 0.0625, 0]],
  ['cosine', [0, 0.5, 1, half(0.25), 0.5, half(0.75), half(15 / 16), 0]],
  ['constant', [1, 1, 1, 1, 1, 1, 1, 1]],
  ['constant_with_warmup', [0, 0.5, 1, 1, 1, 1, 1, 1]],
  ['polynomial', [0, 0.5, 1, 0.75, 0.5, 0.25, 0.0625, 1e-7]],
  ['cosine_with_restarts', [0, 0.5, 1, half(0.25), 0.5, half(0.75), half(15 / 16), 0]],
  [{ type: 'cosine_with_restarts', cycles: 2 }, [0, 0.5, 1, 0.5, 1, 0.5, half(7 / 8), 0]],
  [
    { type: 'cosine_with_min_lr', minLr: 0.2 },
    [
      0,
      0.5,
      1,
      0.2 + 0.8 * half(0.25),
      0.6,
      0.2 + 0.8 * half(0.75),
      0.2 + 0.8 * half(15 / 16),
      0.2,
    ],
  ],
  ['inverse_sqrt', [0, 0.5, 1, ...[8, 12, 16, 19, 20].map((n) => Math.sqrt(4 / n))]],
  [{ type: 'warmup_stable_decay', decay: 8 }, [0, 0.5, 1, 1, 1, 0.5, half(7 / 8), 0]],
  // This schedule starts its warm-up at the lowest rate.
  [
    { type: 'warmup_stable_decay', decay: 8, minLrRate: 0.2, decayType: 'linear' },
    [0.2, 0.6, 1, 1, 1, 0.6, 0.3, 0.2],
  ],
  [
    { type: 'warmup_stable_decay', decay: 8, decayType: '1-sqrt', warmupType: 'cosine' },
    [0, 0.5, 1, 1, 1, 1 - Math.sqrt(0.5), 1 - Math.sqrt(7 / 8), 0],
  ],
  [
    { type: 'warmup_stable_decay', decay: 4, stable: 2, warmupType: '1-sqrt', minLrRate: 0.5 },
    [0.5, 0.5 + 0.5 * (1 - Math.sqrt(0.5)), 1, 0.75, 0.5, 0.5, 0.5, 0.5],
  ],
  [{ type: 'warmup_stable_decay', decay: 8, cycles: 1 }, [0, 0.5, 1, 1, 1, 0, half(14 / 8), 0]],
  [
    { type: 'cosine_with_min_lr', minLrRate: 0.2 },
    [0, 0.5, 1, ...[0.25, 0.5, 0.75, 15 / 16, 1].map((part) => 0.2 + 0.8 * half(part))],
  ],
  // Each step has the rate of the next step in the other schedule: no step has a rate of 0.
  [
    { type: 'cosine_warmup_with_min_lr', minLrRate: 0.2 },
    [0.25, 0.75, ...[1, 5, 9, 13, 16, 16].map((step) => 0.2 + 0.8 * half(step / 16))],
  ],
  [
    { type: 'cosine_warmup_with_min_lr', minLr: 0.2, warmupLrRate: 0.1 },
    [0.1, 0.7, ...[1, 5, 9, 13, 16, 16].map((step) => 0.2 + 0.8 * half(step / 16))],
  ],
];

test.each(curves)('the rate of %j is that of transformers', (schedule, factors) => {
  const localOwnSchedule = new OwnSchedule(schedule, span);
  at.forEach((step, i) => {
    expect(localOwnSchedule.lr(step)).toBeCloseTo(factors[i] as number, 6);
  });
});

test('a lowest rate above the rate of a group is refused; that of polynomial may be above', () => {
  const polynomial = new OwnSchedule('polynomial', { ...span, lr: 1e-8 });
  expect(polynomial.lr(span.totalSteps)).toBeCloseTo(1e-7, 10);
  for (const [minLr, lr] of [
    [1, 1],
    [0.5, 0],
  ] as const) {
    expect(new OwnSchedule({ type: 'linear', minLr }, { ...span, lr }).lr(20)).toBe(lr);
  }
  const risen = () => new OwnSchedule({ type: 'linear', minLr: 0.5 }, { ...span, lr: 0.1 });
  expect(risen).toThrow(
    'Trainer schedule minLr: expected at most 0.1, the rate that falls, got 0.5',
  );
});

test.each(curves)('a rate of 0 stays 0 along %j', (schedule) => {
  const localOwnSchedule = new OwnSchedule(schedule, { ...span, lr: 0 });
  expect(at.map((step) => localOwnSchedule.lr(step))).toEqual(at.map(() => 0));
});
