// Tests optimizers without an engine: the bits of the engine, saved and loaded state, 16-bit
// masters, clipping, misuse.
import assert from 'node:assert/strict';
import {
  DsError,
  initialize,
  liveTensors,
  mse,
  nn,
  optim,
  scope,
  seed,
  Tensor,
} from '../../lib/index.js';
import type { StandaloneOptimizer } from '../../lib/optim/index.js';
import type { Device } from '../../lib/runtime/device.js';
import type { Case } from '../support/case.js';

const { Adafactor, Adagrad, AdamW, AdamW8bit, Lamb, Lion, Muon, RMSprop, Sgd } = optim;

class Net extends nn.Module {
  readonly first = new nn.Linear(5, 13);
  readonly second = new nn.Linear(13, 3);

  forward(x: Tensor, y: Tensor): Tensor {
    return mse(this.second.call(this.first.call(x).tanh()), y);
  }
}

type Make = (model: Net) => StandaloneOptimizer;

const halves = (model: Net) => [
  { params: model.first.parameters(), weightDecay: 0.1 },
  { params: model.second.parameters(), lr: 3e-2 },
];

const makers: [string, Make][] = [
  ['AdamW', (m) => new AdamW(halves(m), { lr: 1e-2 })],
  ['AdamW, bf16', (m) => new AdamW(halves(m), { lr: 1e-2, fp32OptimizerStates: false })],
  ['Adam with L2', (m) => new optim.Adam(m.parameters(), { adamWMode: false, weightDecay: 0.1 })],
  ['SGD', (m) => new Sgd(halves(m), { lr: 1e-2 })],
  ['SGD nesterov', (m) => new Sgd(halves(m), { lr: 1e-2, momentum: 0.9, nesterov: true })],
  ['Adagrad', (m) => new Adagrad(halves(m), { lrDecay: 0.1, initialAccumulatorValue: 0.1 })],
  ['RMSprop', (m) => new RMSprop(halves(m), { momentum: 0.5, centered: true })],
  ['Lion', (m) => new Lion(halves(m), { lr: 1e-2 })],
  ['Lamb', (m) => new Lamb(halves(m), { lr: 1e-2 })],
  ['Adafactor', (m) => new Adafactor(halves(m), { lr: 1e-2, beta1: 0.9 })],
  ['Adafactor by itself', (m) => new Adafactor(m.parameters(), { warmupInit: true })],
  ['AdamW8bit', (m) => new AdamW8bit(halves(m), { lr: 1e-2, min8bitSize: 20 })],
  ['Muon', (m) => new Muon(optim.makeMuonGroups(m.namedParameters()), { weightDecay: 0.1 })],
];

const STEPS = 6;

function netOn(device: Device): Net {
  seed(11);
  return new Net().to(device);
}

/** The inputs of step number `step`, from a formula. */
function batch(device: Device, step: number): [Tensor, Tensor] {
  const wave = (n: number, shift: number) =>
    Float32Array.from({ length: n }, (_, i) => Math.sin(i * 1.7 + step * 2.3 + shift));
  const tensor = (shape: number[], shift: number) =>
    Tensor.from(wave(shape[0]! * shape[1]!, shift), { shape, device });
  return [tensor([4, 5], 0), tensor([4, 3], 1)];
}

function backward(model: Net, device: Device, step: number): number {
  return scope(() => {
    const loss = model.call(...batch(device, step)) as Tensor;
    loss.backward();
    return loss.item();
  });
}

function train(model: Net, opt: StandaloneOptimizer, device: Device, from = 0, to = STEPS): void {
  for (let step = from; step < to; ++step) {
    backward(model, device, step);
    opt.step();
    opt.zeroGrad();
  }
}

const bitsOf = (model: nn.Module): Uint8Array[] =>
  model.parameters().map((parameter) => {
    const raw = parameter.toRaw();
    return new Uint8Array(raw.buffer, raw.byteOffset, raw.byteLength).slice();
  });

async function sameAsEngine(make: Make, device: Device): Promise<void> {
  const alone = netOn(device);
  using opt = make(alone);
  train(alone, opt, device);

  const model = netOn(device);
  const config = { train_micro_batch_size_per_gpu: 4, gradient_clipping: 0 };
  const { engine } = await initialize({ model, config, device, optimizer: make(model) });
  for (let step = 0; step < STEPS; ++step) {
    scope(() => engine.backward(engine.forward<Tensor>(...batch(device, step))));
    engine.step();
  }
  assert.deepEqual(bitsOf(alone), bitsOf(model));
  engine.destroy();
}

async function resumes(make: Make, device: Device): Promise<void> {
  const straight = netOn(device);
  train(straight, make(straight), device);

  const [before, after] = [netOn(device), netOn(device)];
  const first = make(before);
  train(before, first, device, 0, 3);
  const state = first.stateDict();
  first.groups[0]!.lr *= 1; // The groups of the state are copies.
  after.loadStateDict(before.stateDict());
  const second = make(after);
  second.groups[0]!.lr = 99;
  second.loadStateDict(state);
  assert.equal(second.groups[0]!.lr, first.groups[0]!.lr);
  train(after, second, device, 3, STEPS);
  assert.deepEqual(bitsOf(after), bitsOf(straight));
}

/**
 * Loads state that was saved before the first step, or by some parameters only; all other state is
 * reset.
 */
function startsAnew(device: Device): void {
  const [used, fresh] = [netOn(device), netOn(device)];
  const opt = new AdamW(used.parameters(), { lr: 1e-2 });
  const initial = opt.stateDict();
  train(used, opt, device, 0, 3);
  const { state, groups } = opt.stateDict();
  opt.loadStateDict({ state: { 0: state[0]! }, groups });
  assert.deepEqual(Object.keys(opt.stateDict().state), ['0']);
  opt.loadStateDict(initial);
  assert.equal(opt.hasStepped, false);
  used.loadStateDict(fresh.stateDict());
  train(used, opt, device);
  train(fresh, new AdamW(fresh.parameters(), { lr: 1e-2 }), device);
  assert.deepEqual(bitsOf(used), bitsOf(fresh));
}

const throwsCode = (code: string, body: () => unknown, message = /./): void =>
  assert.throws(
    body,
    (error: unknown) =>
      error instanceof DsError && error.code === code && message.test(error.message),
  );

function masters(device: Device): void {
  const model = netOn(device).to('bf16');
  const [weight] = model.parameters() as [nn.Parameter];
  using opt = new Sgd([weight], { lr: 1 });
  weight.grad = Tensor.from(new Float32Array(65).fill(2 ** -10), {
    shape: [13, 5],
    device,
    dtype: 'bf16',
  });
  const ones = Tensor.from(new Float32Array(65).fill(1), { shape: [13, 5], device });
  model.loadStateDict({ 'first.weight': ones }, { strict: false });
  // The bf16 next to 1 is 2^-8 away: three steps of 2^-10 round back in bf16, but add up in the
  // master.
  opt.step();
  assert.equal(weight.toArray()[0], 1);
  for (let i = 0; i < 3; ++i) opt.step();
  assert.equal(weight.toArray()[0], 1 - 2 ** -8);
  assert.equal((opt.stateDict().state[0]!.master as Tensor).toArray()[0], 1 - 2 ** -8);
  model.loadStateDict({ 'first.weight': ones.mul(3) }, { strict: false });
  opt.step();
  assert.equal((opt.stateDict().state[0]!.master as Tensor).toArray()[64], 3 - 2 ** -10);
}

function partly(device: Device): void {
  const model = netOn(device);
  const [weight, bias] = model.first.parameters() as [nn.Parameter, nn.Parameter];
  using opt = new AdamW([weight, bias], { lr: 0.1 });
  const old = bias.toArray();
  weight.grad = Tensor.from(new Float32Array(65).fill(1), { shape: [13, 5], device });
  assert.equal(
    opt.step(() => 'the loss'),
    'the loss',
  );
  assert.deepEqual(bias.toArray(), old);
  assert.deepEqual(Object.keys(opt.stateDict().state), ['0']);
  const strided = Tensor.from(new Float32Array(65).fill(1), { shape: [5, 13], device }).transpose(
    0,
    1,
  );
  const packed = netOn(device).first.weight;
  packed.grad = Tensor.from(new Float32Array(65).fill(1), { shape: [13, 5], device });
  new AdamW([packed], { lr: 0.1 }).step();
  const again = netOn(device).first.weight;
  again.grad = strided;
  new AdamW([again], { lr: 0.1 }).step();
  assert.deepEqual(again.toArray(), packed.toArray());
}

function frees(device: Device): void {
  const model = netOn(device);
  backward(model, device, 0);
  const before = liveTensors();
  for (const [, make] of makers) {
    const opt = make(model);
    opt.step();
    assert.ok(liveTensors() > before);
    opt.dispose();
    assert.equal(liveTensors(), before);
  }
}

function refusesStaleGraphs(device: Device): void {
  const model = netOn(device);
  const opt = new Sgd(model.parameters());
  const loss = model.call(...batch(device, 0)) as Tensor;
  backward(model, device, 0);
  opt.step();
  throwsCode('DS_AUTOGRAD', () => loss.backward(), /changed in place/);
}

function clips(device: Device): void {
  const model = netOn(device);
  backward(model, device, 0);
  const grads = () => model.parameters().flatMap(({ grad }) => grad!.toArray());
  const before = grads();
  const norm = Math.hypot(...before);
  assert.ok(Math.abs(nn.clipGradNorm(model.parameters(), 2 * norm).item() / norm - 1) < 1e-6);
  assert.ok(Math.abs(nn.clipGradNorm(model.parameters(), Infinity).item() / norm - 1) < 1e-6);
  assert.deepEqual(grads(), before);
  const found = nn.clipGradNorm(model.parameters(), norm / 3);
  assert.ok(Math.abs(found.item() / norm - 1) < 1e-6);
  const factor = 1 / ((norm + 1e-6) / (norm / 3));
  grads().forEach((x, i) => {
    assert.ok(Math.abs(x - before[i]! * factor) <= 2e-7 * Math.abs(x));
  });
  nn.clipGradValue(model.parameters(), 1e-3);
  grads().forEach((x) => {
    assert.ok(Math.abs(x) <= Math.fround(1e-3));
  });
  nn.clipGradNorm(model.parameters(), 0);
  assert.ok(grads().every((x) => x === 0));
  assert.equal(nn.clipGradNorm([], 1).item(), 0);
  const [weight] = model.parameters() as [nn.Parameter];
  weight.grad!.fill_(Number.NaN);
  const strict = { errorIfNonfinite: true };
  throwsCode('DS_NONFINITE', () => nn.clipGradNorm(model.parameters(), 1, strict));
  throwsCode('DS_NONFINITE', () => nn.clipGradNorm(model.parameters(), Infinity, strict));
  assert.ok(Number.isNaN(nn.clipGradNorm(model.parameters(), 1).item()));
  throwsCode('DS_ARGUMENT', () => nn.clipGradNorm(model.namedParameters() as never, 1));
  throwsCode('DS_ARGUMENT', () => nn.clipGradNorm(model.parameters(), -1));
  throwsCode('DS_ARGUMENT', () => nn.clipGradNorm(model.parameters(), 1, { normType: 1 } as never));
}

/** 16-bit gradients are scaled in f32 and rounded once. */
function clipsHalves(device: Device): void {
  const leaf = Tensor.from([3, 4], { device, dtype: 'f16' }).requireGrad();
  leaf.grad = Tensor.from([3, 4], { device, dtype: 'f16' });
  assert.equal(nn.clipGradNorm(leaf as never, 2.5).item(), 5);
  assert.deepEqual(leaf.grad.toArray(), [1.5, 2]);
}

function schedules(device: Device): void {
  const model = netOn(device);
  const opt = new Sgd(halves(model), { lr: 0.3 });
  const schedule = () =>
    new optim.LrScheduler(opt, ({ lr }) => new optim.LinearLr({ baseLr: lr, steps: 2 }));
  const linear = schedule();
  const near = (rates: number[], want: number[]) =>
    rates.forEach((rate, i) => {
      assert.ok(Math.abs(rate - want[i]!) < 1e-12, `${rates}`);
    });
  near(linear.lastLr, [0.1, 0.01]);
  linear.step();
  const middle = linear.stateDict();
  linear.step();
  near([opt.groups[0]!.lr, opt.groups[1]!.lr], [0.3, 0.03]);
  linear.loadStateDict(middle);
  near(linear.lastLr, [0.2, 0.02]);
  throwsCode('DS_ARGUMENT', () => linear.step(3), /no schedule uses it/);
  throwsCode('DS_CHECKPOINT', () => linear.loadStateDict({ steps: -1 }));
  const plateau = new optim.LrScheduler(
    opt,
    new optim.ReduceLrOnPlateau({ baseLr: 0.4, patience: 0, factor: 0.5 }),
  );
  throwsCode('DS_ARGUMENT', () => plateau.step(), /metric/);
  plateau.step(1);
  plateau.step(1);
  near(plateau.lastLr, [0.2, 0.2]);
  throwsCode('DS_ARGUMENT', () => new optim.LrScheduler(opt, {} as never), /LinearLr/);
  throwsCode('DS_ARGUMENT', () => new optim.LrScheduler(model as never, () => ({}) as never));
}

async function refusesEngines(device: Device): Promise<void> {
  const model = netOn(device);
  const used = new Sgd(model.parameters());
  train(model, used, device, 0, 1);
  const config = { train_micro_batch_size_per_gpu: 4 };
  const isMisuse = (error: unknown): boolean =>
    error instanceof DsError && error.code === 'DS_ARGUMENT' && /without steps/.test(error.message);
  await assert.rejects(initialize({ model, config, device, optimizer: used }), isMisuse);
  used.dispose();
  const { engine } = await initialize({ model, config, device, optimizer: used });
  throwsCode('DS_ARGUMENT', () => used.step(), /engine\.step/);
  const other = new Sgd(model.parameters());
  throwsCode('DS_ARGUMENT', () => other.zeroGrad(), /engine\.step/);
  throwsCode('DS_ARGUMENT', () => used.loadStateDict(used.stateDict()), /initialize/);
  throwsCode('DS_ARGUMENT', () => nn.clipGradNorm(model.parameters(), 1), /gradient_clipping/);
  used.zeroGrad();
  engine.destroy();
  used.zeroGrad();
}

function refusesOthers(device: Device): void {
  const model = netOn(device);
  const opt = new AdamW(model.parameters());
  train(model, opt, device, 0, 1);
  const state = opt.stateDict();
  const weights = bitsOf(model);
  const [, second] = [state.state[0]!, state.state[1]!];
  const wrong: [unknown, RegExp][] = [
    [null, /result of stateDict\(\)/],
    [{ state: {}, groups: [] }, /1 groups/],
    [{ ...state, groups: [{ params: [0] }] }, /4 parameters, got 1/],
    [{ ...state, groups: [null] }, /4 parameters, got none/],
    [{ ...state, groups: [{ ...state.groups[0], momentum: 1 }] }, /momentum/],
    [{ ...state, state: { 0: second } }, /exp_avg/],
    [{ ...state, state: { 0: { ...state.state[0], step: 1.5 } } }, /number of updates/],
    [{ ...state, state: { 0: { ...state.state[0], sum: second.exp_avg } } }, /sum/],
  ];
  for (const [given, message] of wrong) {
    throwsCode('DS_CHECKPOINT', () => opt.loadStateDict(given as never), message);
  }
  assert.deepEqual(bitsOf(model), weights);
  const wide = Tensor.from([1, 2], { device, dtype: 'f64' }).requireGrad();
  wide.grad = Tensor.from([1, 2], { device, dtype: 'f64' });
  throwsCode('DS_DTYPE', () => new Sgd([wide]).step(), /f64/);
  const leaf = Tensor.from(
    [
      [1, 2],
      [3, 4],
    ],
    { device },
  ).requireGrad();
  throwsCode('DS_ARGUMENT', () => new Sgd([leaf.mul(2)]), /leaves/);
  const strided = leaf.detach().transpose(0, 1).requireGrad();
  strided.grad = Tensor.from(
    [
      [1, 2],
      [3, 4],
    ],
    { device },
  );
  throwsCode('DS_SHAPE', () => new Sgd([strided]).step(), /contiguous/);
  backward(model, device, 0);
  model.to('bf16');
  throwsCode('DS_DEVICE', () => opt.step(), /f32 on .* where its state is/);
}

export const cases: Case[] = [
  ...makers.flatMap(([name, make]): Case[] => [
    { name: `${name}: an engine's bits in f32`, run: (device) => sameAsEngine(make, device) },
    { name: `${name}: goes on from a saved state`, run: (device) => resumes(make, device) },
  ]),
  ...(
    [
      ['16-bit parameters have f32 masters, which take over what is written', masters],
      ['parameters without a gradient stay; strided gradients are taken', partly],
      ['dispose() frees all state', frees],
      ['a state of no updates starts anew', startsAnew],
      ['a graph from before the step is refused', refusesStaleGraphs],
      ['clipGradNorm and clipGradValue', clips],
      ['clipGradNorm rounds 16-bit gradients once', clipsHalves],
      ['LrScheduler moves the rates', schedules],
      ['what does not fit is refused and changes nothing', refusesOthers],
    ] as const
  ).map(([name, body]): Case => ({ name, run: (device) => scope(() => body(device)) })),
  { name: 'an engine and a standalone optimizer keep apart', run: refusesEngines },
];
