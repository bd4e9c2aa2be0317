// Tests the descriptions of optimizers: state per group, defaults, errors, DeepSpeed's names,
// values that OneCycle schedules.
import { resolveConfig } from '../../lib/config/index.js';
import { buildSchedules } from '../../lib/engine/setup/schedule.js';
import { DsError } from '../../lib/errors.js';
import { perElement } from '../../lib/optim/declared-state.js';
import {
  Adafactor,
  Adagrad,
  Adam,
  AdamW,
  AdamW8bit,
  DeepSpeedCPUAdam,
  FusedAdam,
  Lamb,
  Lion,
  Muon,
  OneCycle,
  RMSprop,
  Sgd,
} from '../../lib/optim/index.js';
import type { UpdateTensors } from '../../lib/optim/optimizer.js';
import type { UpdateKernels } from '../../lib/optim/update-kernels.js';
import { Tensor } from '../../lib/tensor/index.js';

const parameter = (): Tensor => Tensor.from([1, 2, 3]).keep();

const muon = (params: Tensor[], options: object): Muon =>
  new Muon([{ params, useMuon: false }], options);

/** The kernel arguments of one update of group 0. */
function argumentsOf(optimizer: Sgd | Adagrad | Lion | AdamW, step: number): object {
  const asked: object[] = [];
  const kernels = new Proxy({} as UpdateKernels, {
    get: () => (args: object) => asked.push(args),
  });
  const state = optimizer.declareState(0, [3]) as object;
  const tensors = { group: 0, state } as UpdateTensors;
  optimizer.update(tensors, { step, groups: optimizer.groups as never }, kernels);
  expect(asked).toHaveLength(1);
  return asked[0] as object;
}

test.each<[make: (params: Tensor[], options: object) => unknown, options: object, message: string]>(
  [
    [
      (p, o) => new AdamW(p, o),
      { biasCorrection: 'false' },
      'AdamW biasCorrection: expected true or',
    ],
    [(p, o) => new AdamW(p, o), { decoupled: 0 }, 'AdamW decoupled: expected true or false, got 0'],
    [(p, o) => new Adam(p, o), { adam_w_mode: 'false' }, 'Adam adamWMode: expected true or false'],
    [
      (p, o) => new AdamW8bit(p, o),
      { biasCorrection: 1 },
      'AdamW8bit biasCorrection: expected true',
    ],
    [
      (p, o) => new Lamb(p, o),
      { epsInsideSqrt: 'no' },
      'Lamb epsInsideSqrt: expected true or false',
    ],
    [
      (p, o) => new Adafactor(p, o),
      { relativeStep: 'yes' },
      'Adafactor relativeStep: expected true',
    ],
    [
      (p, o) => new Sgd(p, o),
      { nesterov: 'true', momentum: 0.9 },
      'SGD nesterov: expected true or',
    ],
    [
      (p, o) => new RMSprop(p, o),
      { centered: 'false' },
      'RMSprop centered: expected true or false',
    ],
    [
      (p, o) => muon(p, o),
      { nsMethod: 'Newton' },
      'Muon nsMethod: expected "gram", "standard", got',
    ],
    [(p, o) => muon(p, o), { nesterov: 'false' }, 'Muon nesterov: expected true or false'],
  ],
)('an unknown option value is refused: %# %j', (make, options, message) => {
  expect(() => make([parameter()], options)).toThrow(message);
});

test('SGD keeps state only for groups with momentum', () => {
  const sgd = new Sgd([{ params: [parameter()] }, { params: [parameter()], momentum: 0.9 }]);
  expect(sgd.declareState(0, [3])).toEqual({});
  expect(sgd.declareState(1, [3])).toEqual({ momentum_buffer: perElement([3]) });
});

test('the first SGD update is marked', () => {
  const sgd = new Sgd([parameter()], { momentum: 0.9 });
  expect(argumentsOf(sgd, 1)).toMatchObject({ first: true, momentum: 0.9 });
  expect(argumentsOf(sgd, 2)).toMatchObject({ first: false });
});

test.each<[optimizer: Sgd | RMSprop, set: object, message: RegExp]>([
  [new Sgd([parameter()]), { momentum: 0.9 }, /SGD group 0 momentum: expected 0, .* got 0\.9/],
  [new RMSprop([parameter()]), { momentum: 0.9 }, /RMSprop group 0 momentum: expected 0, /],
  [new RMSprop([parameter()]), { centered: true }, /RMSprop group 0 centered: expected false, /],
])('options that need missing state are refused: %#', (optimizer, set, message) => {
  Object.assign(optimizer.groups[0]!, set);
  const tensors = { group: 0, state: {} } as UpdateTensors;
  const settings = { step: 2, groups: optimizer.groups as never };
  const kernels = { sgd: () => {}, rmsprop: () => {} } as unknown as UpdateKernels;
  expect(() => optimizer.update(tensors, settings, kernels)).toThrow(message);
});

test.each([{ nesterov: true }, { nesterov: true, momentum: 0.9, dampening: 0.1 }])(
  'SGD refuses %j',
  (options) => {
    expect(() => new Sgd([parameter()], options)).toThrow(DsError);
    expect(() => new Sgd([parameter()], options)).toThrow(
      /SGD group 0: expected a momentum above 0/,
    );
  },
);

test('Adagrad starts its sums with initial_accumulator_value, per group, and decays its rate', () => {
  const adagrad = new Adagrad(
    [{ params: [parameter()] }, { params: [parameter()], initialAccumulatorValue: 0.5 }],
    { lr: 0.1, lrDecay: 0.5 },
  );
  expect(adagrad.declareState(0, [3])).toEqual({ sum: perElement([3]) });
  expect(adagrad.declareState(1, [3])).toEqual({ sum: perElement([3], 0.5) });
  expect(argumentsOf(adagrad, 1)).toMatchObject({ lr: 0.1, eps: 1e-10 });
  expect(argumentsOf(adagrad, 3)).toMatchObject({ lr: 0.05 });
});

test("OneCycle's momenta may be lists, one for each group, as its rates may", () => {
  const params = {
    cycle_min_lr: [1e-4, 2e-4],
    cycle_max_lr: [1e-3, 2e-3],
    cycle_min_mom: [0.7, 0.8],
    cycle_max_mom: [0.9, 0.95],
    cycle_first_stair_count: -1,
  };
  const scheduler = { type: 'OneCycle' as const, params };
  const config = { train_micro_batch_size_per_gpu: 1, scheduler };
  const { scheduler: resolved } = resolveConfig(config, { worldSize: 1 });
  const groups = [0, 1].map(() => ({
    params: [],
    lr: 1,
    weightDecay: 0,
    betas: [0.9, 0.999] as const,
  }));
  buildSchedules(resolved, groups).apply(groups, 2000);
  expect(groups.map(({ lr, betas }) => [lr, betas[0]])).toEqual([
    [1e-3, expect.closeTo(0.7, 14)],
    [2e-3, expect.closeTo(0.8, 14)],
  ]);
});

test('OneCycle moves the first beta of Lion and leaves the momentum of SGD', () => {
  const schedule = new OneCycle({ minLr: 1e-4, maxLr: 1e-2 });
  const [lion, sgd] = [new Lion([parameter()]), new Sgd([parameter()], { momentum: 0.9 })];
  for (const { groups } of [lion, sgd]) schedule.apply(groups[0]!, 0);
  expect(argumentsOf(lion, 1)).toMatchObject({ lr: 1e-4, beta1: 0.8, beta2: 0.99 });
  expect(argumentsOf(sgd, 1)).toMatchObject({ lr: 1e-4, momentum: 0.9 });
});

test.each([
  [AdamW, {}, true],
  [AdamW, { decoupled: false }, false],
  [Adam, {}, true],
  [Adam, { adamWMode: false }, false],
  [FusedAdam, { adamWMode: false }, false],
  [DeepSpeedCPUAdam, {}, true],
] as const)('%p with %j is decoupled: %p', (Optimizer, options, decoupled) => {
  const optimizer = new Optimizer([parameter()], options as object);
  expect(argumentsOf(optimizer, 1)).toMatchObject({ decoupled, lr: 1e-3 });
  expect(Object.keys(optimizer.declareState(0, [3]))).toEqual(['exp_avg', 'exp_avg_sq']);
});
