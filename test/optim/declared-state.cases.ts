// Tests Adafactor and AdamW8bit: formulas in f64 for cases without recordings, offload, memory, and
// falling losses.
import assert from 'node:assert/strict';
import { type DsConfig, type Engine, initialize, optim, scope, Tensor } from '../../lib/index.js';
import type { Device } from '../../lib/runtime/device.js';
import { seed } from '../../lib/tensor/index.js';
import {
  type Precision,
  tinyConfig,
  tinyModel,
  trainTiny,
  weightBits,
} from '../e2e/tiny-training.js';
import type { Case } from '../support/case.js';

const { abs, cos, max, min, sin, sqrt } = Math;

const STEPS = 6;
const EPS = [1e-30, 1e-3] as const;

interface Expected {
  shape: number[];
  p: number[];
  /** Moments of rows and columns, or of elements. */
  row: number[];
  column: number[];
  v: number[];
}

const rms = (x: readonly number[]): number => sqrt(x.reduce((sum, y) => sum + y * y, 0) / x.length);

/** Directions of a parameter with two dims or more, as matrices of its last two. */
function factorMoments(expected: Expected, g: readonly number[], decay: number): number[] {
  const [rows, columns] = expected.shape.slice(-2) as [number, number];
  const size = rows * columns;
  const mean = (values: number[]): number => values.reduce((a, b) => a + b, 0) / values.length;
  const moveAverage = (old: number[], next: number[]): number[] =>
    next.map((x, i) => decay * (old[i] ?? 0) + (1 - decay) * x);
  const squares = g.map((x) => x * x + EPS[0]);
  const of = (m: number, r: number, c: number): number => squares[m * size + r * columns + c]!;
  const range = (n: number): number[] => Array.from({ length: n }, (_, i) => i);
  const matrices = range(g.length / size);
  expected.row = moveAverage(
    expected.row,
    matrices.flatMap((m) => range(rows).map((r) => mean(range(columns).map((c) => of(m, r, c))))),
  );
  expected.column = moveAverage(
    expected.column,
    matrices.flatMap((m) => range(columns).map((c) => mean(range(rows).map((r) => of(m, r, c))))),
  );
  const means = matrices.map((m) => mean(expected.row.slice(m * rows, (m + 1) * rows)));
  return g.map((x, i) => {
    const [m, r, c] = [Math.floor(i / size), Math.floor(i / columns), i % columns];
    return x / sqrt((expected.row[r]! / means[m]!) * expected.column[m * columns + c]!);
  });
}

/** One update by the relative step with warm-up, in plain f64. */
function expectedStep(expected: Expected, g: readonly number[], t: number): void {
  const decay = 1 - t ** -0.8;
  let u: number[];
  if (expected.shape.length > 1) u = factorMoments(expected, g, decay);
  else {
    expected.v = g.map((x, i) => decay * (expected.v[i] ?? 0) + (1 - decay) * (x * x + EPS[0]));
    u = g.map((x, i) => x / sqrt(expected.v[i]!));
  }
  const rate = 1e3 * min(1e-6 * t, 1 / sqrt(t)) * max(EPS[1], rms(expected.p));
  const step = rate / max(1, rms(u));
  expected.p = expected.p.map((x, i) => x - rate * 0.1 * x - step * u[i]!);
}

/**
 * Three dims, four dims, a row, a column, a scalar, a vector, an empty tensor, a matrix. One starts
 * at zero.
 */
const SHAPES = [[3, 5, 7], [2, 2, 3, 4], [1, 9], [9, 1], [], [11], [0, 4], [70, 66]];

function equalsFormula(device: Device): void {
  const size = (shape: readonly number[]): number => shape.reduce((a, b) => a * b, 1);
  const wave = (n: number, k: number): Float32Array =>
    Float32Array.from({ length: n }, (_, i) => sin(i * 1.7 + k) + 0.3 * cos(i * i + k));
  const initial = SHAPES.map((shape, k) => wave(size(shape), k).map((x) => (k === 2 ? 0 : x)));
  const parameters = SHAPES.map((shape, k) =>
    Tensor.from(initial[k]!, { shape, device }).keep().requireGrad(),
  );
  // The rate multiplies the relative step. Default: 1.
  using optimizer = new optim.Adafactor(parameters, { warmupInit: true, weightDecay: 0.1 });
  optimizer.groups[0]!.lr = 1e3;
  const expected = SHAPES.map(
    (shape, k): Expected => ({ shape, p: [...initial[k]!], row: [], column: [], v: [] }),
  );
  for (let t = 1; t <= STEPS; ++t) {
    scope(() => {
      parameters.forEach((parameter, k) => {
        const g = wave(parameter.numel, 10 * t + k);
        parameter.grad = Tensor.from(g, { shape: parameter.shape, device }).keep();
        if (parameter.numel > 0) expectedStep(expected[k]!, [...g], t);
      });
      optimizer.step();
      optimizer.zeroGrad();
    });
  }
  expected.forEach(({ shape, p }, k) => {
    const got = (parameters[k] as Tensor).toArray().flat(9) as number[];
    const worst = max(0, ...p.map((want, i) => abs(want - got[i]!)));
    assert.ok(worst <= 2e-6 * max(1e-3, ...p.map(abs)), `[${shape}]: ${worst}`);
    assert.ok(shape.includes(0) || got.some((x, i) => x !== initial[k]![i]), `[${shape}] moved`);
  });
  for (const parameter of parameters) parameter.dispose();
}

const sections = {
  Adafactor: { type: 'Adafactor', params: { lr: 3e-3, weight_decay: 0.1, scale_parameter: false } },
  AdamW8bit: { type: 'AdamW8bit', params: { lr: 3e-3, weight_decay: 0.1, min_8bit_size: 512 } },
} as const satisfies Record<string, DsConfig['optimizer']>;

type Type = keyof typeof sections;

async function engineOf(
  type: Type,
  { precision, offload = false }: { precision: Precision; offload?: boolean },
  device: Device,
): Promise<Engine> {
  seed(1234);
  const model = tinyModel();
  const optimizer = sections[type];
  const config = tinyConfig({ precision, offload, optimizer, clip: 0.5 });
  return (await initialize({ model, config, device })).engine;
}

async function offloadEqualsResident(
  type: Type,
  precision: Precision,
  device: Device,
): Promise<void> {
  device.setDeterministic(true);
  const runs = [];
  for (const offload of [false, true]) {
    const engine = await engineOf(type, { precision, offload }, device);
    const losses = trainTiny(engine, 0, 20);
    assert.ok(losses.at(-1)! < losses[0]! - 0.3, `no learning: ${losses}`);
    runs.push({ losses, weights: weightBits(engine), skipped: engine.skippedSteps });
    engine.destroy();
  }
  assert.deepEqual(runs[1], runs[0]);
  if (precision === 'fp16') assert.ok(runs[0]!.skipped > 0, 'no overflow was provoked');
}

/**
 * Bytes of master weights and state on one rank match the formula, except for padding and shared
 * buffers of updates.
 */
async function memory(type: Type, device: Device): Promise<void> {
  const engine = await engineOf(type, { precision: 'bf16' }, device);
  const { units, state } = engine.parts;
  let [formula, padding] = [0, 0];
  for (const { layout } of units) {
    for (const { shape, numel } of layout.entries) {
      const ofAdafactor = shape.length > 1 ? 16 * (shape[0]! + shape[1]!) : 4 * numel;
      const of8bit = numel < 512 ? 8 * numel : 2.03125 * numel;
      formula += 4 * numel + (type === 'Adafactor' ? ofAdafactor : of8bit);
    }
    padding += layout.gaps.reduce((sum, { numel }) => sum + numel, 0);
  }
  const { device: bytes } = state.bytes;
  assert.ok(
    bytes >= formula && bytes < formula * 1.01 + 12 * padding + 4096,
    `${bytes}, ${formula}`,
  );
  const all = units.reduce((sum, { layout }) => sum + layout.numel, 0);
  assert.ok(bytes < 0.7 * 12 * all, `${bytes} of AdamW's ${12 * all}`);
  engine.destroy();
}

/**
 * A step with later zero gradients, as for a table row with a token that occurs once. The second
 * moments span eight decades, too many for the smallest of them in 8-bit codes.
 */
function smallSteps(device: Device): void {
  const [count, lr] = [256, 1e-2];
  const gradients = Float32Array.from({ length: count }, (_, i) => (-1) ** i * 10 ** (-i / 60));
  const parameter = Tensor.from(new Float32Array(count), { device });
  const optimizer = new optim.AdamW8bit([parameter], { lr, min8bitSize: 0 });
  let before = parameter.toArray();
  for (let step = 0; step < 10; ++step) {
    parameter.grad = Tensor.from(step === 0 ? gradients : new Float32Array(count), { device });
    optimizer.step();
    const after = parameter.toArray();
    const largest = max(...after.map((x, i) => abs(x - before[i]!)));
    assert.ok(largest > 0 && largest <= 1.01 * lr, `step ${step} moves a weight by ${largest}`);
    before = after;
  }
  parameter.dispose();
}

const types = Object.keys(sections) as Type[];

export const cases: Case[] = [
  { name: 'Adafactor equals its formula: dims, zero weights, warm-up', run: equalsFormula },
  ...types.flatMap((type) =>
    (['fp32', 'bf16', 'fp16'] as const).map((precision) => ({
      name: `${type}: offload equals resident: ${precision}`,
      run: (device: Device) => offloadEqualsResident(type, precision, device),
    })),
  ),
  { name: 'AdamW8bit: no step is larger where gradients end', run: smallSteps },
  ...types.map((type) => ({
    name: `${type}: memory is that of the formula`,
    run: (device: Device) => memory(type, device),
  })),
];
