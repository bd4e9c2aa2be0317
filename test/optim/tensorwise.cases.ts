// LAMB and Muon in the engine: formulas on a transformer, offload, skipped steps, resume and parts
// of parameters.
import assert from 'node:assert/strict';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { type DsConfig, type Engine, initialize, optim } from '../../lib/index.js';
import type { UpdateKernels } from '../../lib/optim/update-kernels.js';
import type { Device } from '../../lib/runtime/device.js';
import { seed, Tensor } from '../../lib/tensor/index.js';
import {
  type Precision,
  tinyBatch,
  tinyConfig,
  tinyModel,
  trainTiny,
  weightBits,
} from '../e2e/tiny-training.js';
import type { Case } from '../support/case.js';

const { abs, sqrt, min, max } = Math;

const STEPS = 20;

interface Setup {
  precision: Precision;
  offload?: boolean;
}

/**
 * The tiny GPT-2 with LAMB and two groups: matrices decay; vectors do not, and have their own
 * bounds.
 */
async function lambEngine({ precision, offload = false }: Setup, device: Device): Promise<Engine> {
  seed(1234);
  const model = tinyModel();
  const matrices = model.parameters().filter(({ shape }) => shape.length > 1);
  const rest = model.parameters().filter(({ shape }) => shape.length < 2);
  const optimizer = new optim.Lamb(
    [
      { params: matrices, weightDecay: 0.1 },
      { params: rest, lr: 2e-3, minCoeff: 0.5, maxCoeff: 2, betas: [0.8, 0.95] },
    ],
    { lr: 1e-2, eps: 1e-6 },
  );
  const config = { ...tinyConfig({ precision, offload, clip: 0 }), scheduler: null };
  return (await initialize({ model, config, device, optimizer })).engine;
}

/** The f64 state of one parameter. */
interface Expected {
  group: number;
  p: number[];
  m: number[];
  v: number[];
  ratio: number;
}

function eachMaster(
  engine: Engine,
  body: (name: string, group: number, p: number[]) => void,
): void {
  engine.synchronize();
  const { stage, state } = engine.parts;
  for (const partition of stage.partitions) {
    for (const fragment of partition.fragments) {
      const master = state.lend(partition, fragment, 'master').tensor;
      body(fragment.entry.name, fragment.entry.group, master.toArray());
      master.release();
    }
  }
}

const norm = (x: readonly number[]): number =>
  sqrt(x.reduce((sum, value) => sum + value * value, 0));

/** One update of the formula in plain f64, with DeepSpeed's correction. */
function lambStep(
  expected: Expected,
  grad: readonly number[],
  group: optim.LambGroup,
  t: number,
): void {
  const { lr, betas, eps, weightDecay, minCoeff, maxCoeff } = group;
  const [c1, c2] = [1 - betas[0] ** t, 1 - betas[1] ** t];
  const u = grad.map((g, i) => {
    expected.m[i] = betas[0] * expected.m[i]! + (1 - betas[0]) * g;
    expected.v[i] = betas[1] * expected.v[i]! + (1 - betas[1]) * g * g;
    return expected.m[i]! / (sqrt(expected.v[i]!) + eps) + weightDecay * expected.p[i]!;
  });
  const [w, length] = [norm(expected.p), norm(u)];
  expected.ratio = w === 0 || length === 0 ? 1 : max(minCoeff, min(maxCoeff, w / length));
  for (let i = 0; i < u.length; ++i)
    expected.p[i]! -= ((lr * sqrt(c2)) / c1) * expected.ratio * u[i]!;
}

/** The gradients of one micro-batch by name, after their backward and before the step. */
function gradients(engine: Engine, step: number): Map<string, number[]> {
  const { tokens, targets } = tinyBatch(step, engine.device);
  engine.backward(engine.forward<Tensor>(tokens, targets));
  const found = new Map<string, number[]>();
  for (const partition of engine.parts.stage.partitions) {
    for (const { entry } of partition.fragments) {
      const { grad } = partition.unit.parameterOf(entry);
      found.set(entry.name, grad ? grad.toArray() : new Array<number>(entry.numel).fill(0));
    }
  }
  tokens.dispose();
  targets.dispose();
  return found;
}

/**
 * The engine's own gradients through the formula: master weights and ratios stay together for 20
 * steps.
 */
async function equalsFormula(precision: Precision, device: Device): Promise<void> {
  const engine = await lambEngine({ precision }, device);
  const { optimizer } = engine.parts;
  const expected = new Map<string, Expected>();
  eachMaster(engine, (name, group, p) => {
    expected.set(name, { group, p, m: p.map(() => 0), v: p.map(() => 0), ratio: 1 });
  });
  for (let step = 0; step < STEPS; ++step) {
    for (const [name, grad] of gradients(engine, step)) {
      const one = expected.get(name) as Expected;
      lambStep(one, grad, optimizer.groups[one.group] as optim.LambGroup, step + 1);
    }
    engine.step();
  }
  const ratios = (optimizer as optim.Lamb).getLambCoeffs();
  assert.equal(ratios.size, expected.size);
  eachMaster(engine, (name, _, got) => {
    const { p, ratio } = expected.get(name) as Expected;
    const scale = max(...p.map(abs));
    const worst = max(...p.map((want, i) => abs(want - got[i]!))) / scale;
    assert.ok(worst <= 1e-6, `${name}: relative error ${worst}`);
    assert.ok(abs(ratios.get(name)! - ratio) <= 1e-5 * ratio, `${name}: ratio ${ratio}`);
  });
  assert.ok(new Set(ratios.values()).size > 4, 'every parameter has a ratio of its own');
  engine.destroy();
}

async function offloadEqualsResident(precision: Precision, device: Device): Promise<void> {
  device.setDeterministic(true);
  const runs = [];
  for (const offload of [false, true]) {
    const engine = await lambEngine({ precision, offload }, device);
    const losses = trainTiny(engine, 0, STEPS);
    assert.ok(losses.at(-1)! < losses[0]!, `no learning: ${losses}`);
    const ratios = (engine.parts.optimizer as optim.Lamb).getLambCoeffs();
    runs.push({ losses, ratios, weights: weightBits(engine), skipped: engine.skippedSteps });
    engine.destroy();
  }
  assert.deepEqual(runs[1], runs[0]);
  if (precision === 'fp16') assert.ok(runs[0]!.skipped > 0, 'no overflow was provoked');
}

async function resumes(device: Device): Promise<void> {
  device.setDeterministic(true);
  const dir = mkdtempSync(join(tmpdir(), 'ds-lamb-'));
  try {
    const fullEngine = await lambEngine({ precision: 'bf16' }, device);
    const losses = trainTiny(fullEngine, 0, 5);
    await fullEngine.saveCheckpoint(dir);
    losses.push(...trainTiny(fullEngine, 5, 10));
    const second = await lambEngine({ precision: 'bf16' }, device);
    await second.loadCheckpoint(dir);
    assert.deepEqual(trainTiny(second, 5, 10), losses.slice(5));
    assert.deepEqual(weightBits(second), weightBits(fullEngine));
    for (const engine of [fullEngine, second]) engine.destroy();
  } finally {
    rmSync(dir, { recursive: true, force: true });
  }
}

/** The norm of a parameter is unknown if only a part of it is present. */
function refusesParts(device: Device): void {
  const parameter = Tensor.from([1, 2, 3], { device }).keep();
  const optimizer = new optim.Lamb([parameter]);
  const tensors = {
    group: 0,
    master: parameter,
    grad: parameter,
    weight: null,
    state: {},
    control: parameter,
    sums: [parameter],
    places: [{ name: 'weight', shape: [2, 3], from: 0, offset: 0, numel: 3 }],
    starts: parameter,
  };
  const update = (): void =>
    optimizer.update(tensors, { step: 1, groups: optimizer.groups }, {} as UpdateKernels);
  assert.throws(update, { code: 'DS_CONFIG', message: /3 of the 6 elements of weight/ });
  parameter.dispose();
}

/** The tiny GPT-2 under Muon, from a configuration. */
async function muonEngine(
  { precision, offload = false }: Setup,
  method: 'gram' | 'standard',
  device: Device,
): Promise<Engine> {
  seed(1234);
  const model = tinyModel();
  const config: DsConfig = {
    ...tinyConfig({ precision, offload, clip: 0.5 }),
    scheduler: null,
    optimizer: {
      type: 'Muon',
      params: { lr: 0.02, weight_decay: 0.1, ns_method: method, adam_lr: 3e-3 },
    },
  };
  return (await initialize({ model, config, device })).engine;
}

/**
 * The matrices that Muon updates. Other parameters do not measure rounding. Adam's first steps have
 * unit scale for any gradient, and the gradient of the attention's key bias is noise around zero.
 */
function matricesOf(engine: Engine): Map<string, number[]> {
  const found = new Map<string, number[]>();
  const { groups } = engine.parts.optimizer;
  eachMaster(engine, (name, group, p) => {
    if ((groups[group] as optim.MuonGroup).useMuon) found.set(name, p);
  });
  return found;
}

/** The largest difference, relative to the largest value of each parameter. */
function distance(a: Map<string, number[]>, b: Map<string, number[]>): number {
  const each = [...a].map(([name, p]) => {
    const q = b.get(name) as number[];
    return max(...p.map((x, i) => abs(x - q[i]!))) / max(...p.map(abs));
  });
  return max(...each);
}

/** AdamW updates tables and vectors, Muon the other matrices; the state shows which. */
async function muonSplits(device: Device): Promise<void> {
  const engine = await muonEngine({ precision: 'fp32' }, 'gram', device);
  const { optimizer, stage } = engine.parts;
  const entries = stage.partitions.flatMap(({ fragments }) => fragments.map(({ entry }) => entry));
  assert.equal(optimizer.groups.length, 2);
  for (const { name, shape, group } of entries) {
    const matrix = shape.length > 1 && !/wte|wpe/.test(name);
    assert.equal('momentum_buffer' in optimizer.declareState(group, shape), matrix, name);
    assert.equal(optimizer.groups[group]?.lr, matrix ? 0.02 : 3e-3, name);
  }
  engine.destroy();
}

/** Both forms evaluate one polynomial: in f32 two steps differ by 3e-6 of the largest weight. */
async function muonMethodsAgree(device: Device): Promise<void> {
  const results = [];
  for (const method of ['gram', 'standard'] as const) {
    const engine = await muonEngine({ precision: 'fp32' }, method, device);
    trainTiny(engine, 0, 2);
    results.push(matricesOf(engine));
    engine.destroy();
  }
  const apart = distance(results[0]!, results[1]!);
  assert.ok(apart > 0 && apart < 1e-5, `${apart}`);
}

/**
 * Equal bits on the CPU. A GPU rounds matmuls differently than the host. After 5 steps, matrices
 * differ by up to 6e-6 of their largest element in fp32, and by 3.6e-2 in 16 bits (H200).
 */
async function muonOffload(
  precision: Precision,
  method: 'gram' | 'standard',
  device: Device,
): Promise<void> {
  device.setDeterministic(true);
  const steps = device.kind === 'cpu' ? STEPS : 5;
  const runs = [];
  for (const offload of [false, true]) {
    const engine = await muonEngine({ precision, offload }, method, device);
    const losses = trainTiny(engine, 0, steps);
    if (steps === STEPS) assert.ok(losses.at(-1)! < losses[0]! - 0.5, `no learning: ${losses}`);
    const weights = weightBits(engine);
    runs.push({ losses, weights, matrices: matricesOf(engine), skipped: engine.skippedSteps });
    engine.destroy();
  }
  if (precision === 'fp16') assert.ok(runs[0]!.skipped > 0, 'no overflow was provoked');
  if (device.kind === 'cpu') assert.deepEqual(runs[1], runs[0]);
  else {
    const apart = distance(runs[0]!.matrices, runs[1]!.matrices);
    assert.ok(apart < (precision === 'fp32' ? 1e-4 : 8e-2), `${apart}`);
  }
}

async function muonResumes(device: Device): Promise<void> {
  device.setDeterministic(true);
  const dir = mkdtempSync(join(tmpdir(), 'ds-muon-'));
  try {
    const make = () => muonEngine({ precision: 'bf16' }, 'gram', device);
    const fullEngine = await make();
    trainTiny(fullEngine, 0, 5);
    await fullEngine.saveCheckpoint(dir);
    const losses = trainTiny(fullEngine, 5, 10);
    const second = await make();
    await second.loadCheckpoint(dir);
    assert.deepEqual(trainTiny(second, 5, 10), losses);
    assert.deepEqual(weightBits(second), weightBits(fullEngine));
    for (const engine of [fullEngine, second]) engine.destroy();
  } finally {
    rmSync(dir, { recursive: true, force: true });
  }
}

function muonRefusesGroups(device: Device): void {
  const vector = Tensor.from([1, 2, 3], { device }).keep();
  const group = { params: [vector] } as unknown as optim.MuonGroupOptions;
  assert.throws(() => new optim.Muon([group]), { code: 'DS_ARGUMENT', message: /without useMuon/ });
  assert.throws(() => new optim.Muon([{ ...group, useMuon: true }]), { message: /matrices/ });
  vector.dispose();
}

const precisions: Precision[] = ['fp32', 'bf16', 'fp16'];

export const cases: Case[] = [
  ...(['fp32', 'bf16'] as const).map((precision) => ({
    name: `LAMB equals its formula on a transformer: ${precision}`,
    run: (device: Device) => equalsFormula(precision, device),
  })),
  ...precisions.map((precision) => ({
    name: `LAMB: offload equals resident, ratios included: ${precision}`,
    run: (device: Device) => offloadEqualsResident(precision, device),
  })),
  { name: 'LAMB: resume equals one run', run: resumes },
  { name: 'LAMB refuses a range with parts of parameters', run: refusesParts },
  { name: 'Muon splits a model by name and dims', run: muonSplits },
  { name: 'Muon: gram and standard agree', run: muonMethodsAgree },
  ...(['gram', 'standard'] as const).flatMap((method) =>
    precisions.map((precision) => ({
      name: `Muon: offload and resident: ${precision}, ${method}`,
      run: (device: Device) => muonOffload(precision, method, device),
    })),
  ),
  { name: 'Muon: resume equals one run', run: muonResumes },
  { name: 'Muon refuses groups without a rule and vectors', run: muonRefusesGroups },
];
