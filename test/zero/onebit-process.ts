// One rank that trains with 1-bit optimizers: against their formulas, against dense ones, resumed,
// with skipped steps, and evaluated.
import { createHash } from 'node:crypto';
import { initDistributed } from '../../lib/comm/index.js';
import { type DsConfig, type Engine, initialize, nn, noGrad, Tensor } from '../../lib/index.js';
import { seed } from '../../lib/tensor/index.js';
import {
  type Precision,
  tinyBatch,
  tinyConfig,
  tinyModel,
  weightBits,
} from '../e2e/tiny-training.js';
import {
  distance,
  OneBitAdamRule,
  OneBitLambRule,
  OneBitSgdRule,
  type Place,
  type Row,
  ZeroOneAdamRule,
} from './onebit-rules.js';

export interface OneBitJob {
  kind: 'cpu' | 'cuda';
  /** Folder of checkpoints. */
  dir: string;
  /** Only loads checkpoints of other ranks. */
  loads?: boolean;
}

export interface OneBitReport {
  /** By optimizer and buckets: distance of the final weights from the formula. */
  distances: Record<string, number>;
  /**
   * The kind of each update of 0/1 Adam, in order, and the distance of 1-bit LAMB's trust ratios
   * from the formula.
   */
  kinds: string[];
  ratios: number;
  /** Hashes of weights per run; equal on all ranks. */
  hashes: Record<string, string>;
  /** Pairs of hashes that must be equal. */
  equal: [what: string, one: string, other: string][];
  /** Weights of 0/1 Adam between synchronizations, and after an evaluation. */
  adrift: string;
  settled: string;
  skipped: Record<string, number>;
  /** Sums of this rank's error feedback over parameters, by optimizer. */
  errors: Record<string, number[]>;
  losses: Record<string, number[]>;
}

type Section = NonNullable<DsConfig['optimizer']>;

const STEPS = 30;
const FREEZE = 8;
const UNTOUCHED = 2;

const SHAPES = [[7, 3], [5], [1, 11], [40, 9], [130]];
const GROUP_OF = [0, 1, 1, 0, 0];
const GROUPS = [
  { lr: 0.01, weightDecay: 0.1 },
  { lr: 0.01, weightDecay: 0 },
];

const zeroOne = { varFreeze: 12, varScaler: 2, localScaler: 4, clipper: 4 };
const lamb = {
  freeze: FREEZE,
  minCoeff: 0.05,
  maxCoeff: 2,
  beta: 0.8,
  factorMin: 0.6,
  factorMax: 3,
  threshold: 0.2,
};

const sections = {
  OneBitAdam: { type: 'OneBitAdam', params: { freeze_step: FREEZE } },
  ZeroOneAdam: {
    type: 'ZeroOneAdam',
    params: {
      var_freeze_step: zeroOne.varFreeze,
      var_update_scaler: zeroOne.varScaler,
      local_step_scaler: zeroOne.localScaler,
      local_step_clipper: zeroOne.clipper,
    },
  },
  OneBitLamb: {
    type: 'OneBitLamb',
    params: {
      freeze_step: FREEZE,
      min_coeff: lamb.minCoeff,
      max_coeff: lamb.maxCoeff,
      coeff_beta: lamb.beta,
      factor_min: lamb.factorMin,
      factor_max: lamb.factorMax,
      factor_threshold: lamb.threshold,
    },
  },
  OneBitSGD: { type: 'OneBitSGD', params: { freeze_step: FREEZE, momentum: 0.9 } },
} satisfies Record<string, Section>;

type Name = keyof typeof sections;
const names = Object.keys(sections) as Name[];

/**
 * In [-1000, 1000] / 1024. Step 0 is the initial value on every rank; steps from 1 on are gradients
 * of a rank.
 */
function hashValue(step: number, parameter: number, element: number, rank: number): number {
  const { imul } = Math;
  let x = imul(step, 0x9e3779b1) + imul(parameter, 0x85ebca77) + imul(element, 0xc2b2ae3d) + 1;
  x = (x + imul(rank, 0x27d4eb2f)) >>> 0;
  x = imul(x ^ (x >>> 15), 0x2c1b3c6d) >>> 0;
  x = imul(x ^ (x >>> 12), 0x297a2d39) >>> 0;
  x = (x ^ (x >>> 15)) >>> 0;
  return ((x % 2001) - 1000) / 1024;
}

function valuesOf(step: number, parameter: number, rank: number): Float32Array {
  const count = SHAPES[parameter]!.reduce((product, n) => product * n, 1);
  const values = Float32Array.from({ length: count }, (_, i) =>
    hashValue(step, parameter, i, rank),
  );
  if (step > 0) values[UNTOUCHED] = 0;
  return values;
}

/** The sum of its factor times another tensor; the gradient of the factor is the other tensor. */
class Product extends nn.Module {
  readonly factor: nn.Parameter;

  constructor(index: number) {
    super();
    this.factor = new nn.Parameter(SHAPES[index]!, ({ buffer, offset }) =>
      buffer.write(4 * offset, valuesOf(0, index, 0)),
    );
  }

  forward(other: Tensor): Tensor {
    return this.factor.mul(other).sum();
  }
}

class Products extends nn.Module {
  readonly parts = SHAPES.map((_, index) => new Product(index));

  forward(...others: Tensor[]): Tensor {
    const [first, ...rest] = this.parts.map((part, k) => part.call(others[k] as Tensor));
    return rest.reduce((total, sum) => total.add(sum), first as Tensor);
  }
}

/** Ranges of the parameters in the engine's buckets. */
function rowOf({ parts, worldSize }: Engine, together: boolean): Row {
  const places: Place[] = [];
  const units: { start: number; numel: number }[] = [];
  let end = 0;
  for (const { unit } of parts.stage.partitions) {
    for (const { name, offset, numel, shape, group } of unit.layout.entries) {
      places.push({ start: end + offset, numel, shape, ...GROUPS[group]! });
      index.set(name, places.length - 1);
    }
    units.push({ start: end, numel: unit.layout.numel });
    end += unit.layout.numel;
  }
  const initial = new Float64Array(end);
  for (const [k] of SHAPES.entries()) initial.set(valuesOf(0, k, 0), places[placeOf(k)]!.start);
  const buckets = together ? [{ start: 0, numel: end }] : units;
  return { ranks: worldSize, places, buckets, initial };
}

const index = new Map<string, number>();
const placeOf = (k: number): number => index.get(`parts.${k}.factor`)!;

function ruleOf(name: Name, row: Row) {
  switch (name) {
    case 'OneBitAdam':
      return new OneBitAdamRule(row, FREEZE);
    case 'ZeroOneAdam':
      return new ZeroOneAdamRule(row, zeroOne);
    case 'OneBitLamb':
      return new OneBitLambRule(row, lamb);
    case 'OneBitSGD':
      return new OneBitSgdRule(row, FREEZE);
  }
}

/** Trains Products with an engine and with the formula. */
async function againstFormula(name: Name, together: boolean, report: OneBitReport): Promise<void> {
  const model = new Products();
  const modelParameters = GROUPS.map((settings, group) => ({
    params: model.parts.filter((_, k) => GROUP_OF[k] === group).map(({ factor }) => factor),
    ...settings,
  }));
  const config: DsConfig = {
    train_micro_batch_size_per_gpu: 1,
    gradient_clipping: 0,
    optimizer: sections[name],
    zero_optimization: { stage: 0, ...(together ? {} : { reduce_bucket_size: 1 }) },
  };
  const { engine } = await initialize({ model, config, modelParameters });
  const row = rowOf(engine, together);
  const rule = ruleOf(name, row);
  for (let t = 1; t <= STEPS; ++t) {
    const localTensors = SHAPES.map((shape, k) =>
      Tensor.from(valuesOf(t, k, engine.globalRank), { shape, device: engine.device }).keep(),
    );
    engine.backward(engine.forward<Tensor>(...localTensors));
    engine.step();
    const grads = Array.from({ length: row.ranks }, (_, rank) => {
      const grad = new Float64Array(row.initial.length);
      for (const [k] of SHAPES.entries())
        grad.set(valuesOf(t, k, rank), row.places[placeOf(k)]!.start);
      return grad;
    });
    rule.step(t, grads);
    for (const tensor of localTensors) tensor.dispose();
  }
  engine.synchronize();
  const want = rule.p[engine.globalRank]!;
  const worst = model.parts.map(({ factor }, k) => {
    const { start, numel } = row.places[placeOf(k)]!;
    return distance(factor.toArray(), want.subarray(start, start + numel));
  });
  report.distances[`${name} ${together ? 'in one' : 'by unit'}`] = Math.max(...worst);
  if (rule instanceof ZeroOneAdamRule) report.kinds = rule.kinds;
  if (rule instanceof OneBitLambRule) {
    const localEntries = (
      engine.optimizer as unknown as { getLambCoeffs(): Map<string, number> }
    ).getLambCoeffs();
    const errors = [...localEntries].map(([parameter, ratio]) => {
      const expected = rule.coefficients[index.get(parameter)!]!;
      return Math.abs(ratio - expected) / expected;
    });
    report.ratios = Math.max(...errors);
  }
  engine.destroy();
}

interface Run {
  optimizer: Section;
  precision?: Precision;
  steps: number;
  accumulation?: number;
}

async function build({ optimizer, precision = 'fp32', accumulation = 1 }: Run): Promise<Engine> {
  seed(1234);
  const options = {
    precision,
    offload: false,
    optimizer,
    accumulation,
    zero: { stage: 0 as const },
  };
  return (await initialize({ model: tinyModel(), config: tinyConfig(options) })).engine;
}

/** Micro-batches [from, to) of this rank; returns the losses. */
function train(engine: Engine, from: number, to: number): number[] {
  const losses: number[] = [];
  for (let micro = from; micro < to; ++micro) {
    const { tokens, targets } = tinyBatch(
      micro * engine.worldSize + engine.globalRank,
      engine.device,
    );
    const loss = engine.forward<Tensor>(tokens, targets);
    engine.backward(loss);
    engine.step();
    losses.push(loss.item());
    tokens.dispose();
    targets.dispose();
  }
  return losses;
}

function digest(bits: ReadonlyMap<string, string>): string {
  return createHash('sha256')
    .update(JSON.stringify([...bits]))
    .digest('hex');
}

/** Hash of the weights of this rank, which may differ from the others'. */
function ownHash(engine: Engine): string {
  engine.synchronize();
  const hash = createHash('sha256');
  for (const [, parameter] of engine.module.namedParameters()) hash.update(parameter.toRaw());
  return hash.digest('hex');
}

async function hashOf(run: Run): Promise<string> {
  const engine = await build(run);
  train(engine, 0, run.steps * (run.accumulation ?? 1));
  const hash = digest(weightBits(engine));
  engine.destroy();
  return hash;
}

const lr = 3e-3;

/** Updates in the warm-up have the bits of the dense optimizer. */
async function warmUps(report: OneBitReport): Promise<void> {
  const decay = { lr, weight_decay: 0.1 };
  const late = { freeze_step: 100 };
  const pairs: [Section, Section][] = [
    [
      { type: 'OneBitAdam', params: { ...decay, ...late } },
      { type: 'AdamW', params: { ...decay, bias_correction: false } },
    ],
    [
      { type: 'ZeroOneAdam', params: { ...decay, var_update_scaler: 100 } },
      { type: 'AdamW', params: { ...decay, bias_correction: false } },
    ],
    [
      { type: 'OneBitLamb', params: { ...decay, ...late } },
      { type: 'Lamb', params: { ...decay, bias_correction: false } },
    ],
    [
      { type: 'OneBitSGD', params: { ...decay, ...late, momentum: 0.9 } },
      { type: 'SGD', params: { ...decay, momentum: 0.9 } },
    ],
  ];
  for (const [one, dense] of pairs) {
    const first = await hashOf({ optimizer: one, steps: 4, accumulation: 2 });
    const second = await hashOf({ optimizer: dense, steps: 4, accumulation: 2 });
    report.equal.push([`warm-up of ${one.type}`, first, second]);
  }
}

/**
 * A second moment that converges after few updates, because these optimizers have no bias
 * correction.
 */
const quick = { lr: 1e-3, betas: [0.9, 0.8] as [number, number] };

const tiny: Record<Name, Section> = {
  OneBitAdam: { type: 'OneBitAdam', params: { ...quick, freeze_step: 6, weight_decay: 0.1 } },
  ZeroOneAdam: {
    type: 'ZeroOneAdam',
    params: {
      ...quick,
      var_freeze_step: 6,
      var_update_scaler: 2,
      local_step_scaler: 1,
      local_step_clipper: 4,
    },
  },
  OneBitLamb: { type: 'OneBitLamb', params: { ...quick, freeze_step: 6, weight_decay: 0.1 } },
  OneBitSGD: { type: 'OneBitSGD', params: { lr: 1e-2, freeze_step: 6, momentum: 0.9 } },
};

/** Saves in the middle of a run and resumes: the remaining steps have the same bits. */
async function resume(name: Name, dir: string, report: OneBitReport): Promise<void> {
  const engine = await build({ optimizer: tiny[name], steps: 0 });
  report.losses[name] = train(engine, 0, 10);
  await engine.saveCheckpoint(`${dir}/${name}`, { tag: 'middle' });
  const before = errorSums(engine);
  train(engine, 10, 16);
  const straight = digest(weightBits(engine));
  engine.destroy();
  const again = await build({ optimizer: tiny[name], steps: 0 });
  train(again, 0, 1);
  await again.loadCheckpoint(`${dir}/${name}`);
  report.errors[name] = errorSums(again);
  report.equal.push([`errors of ${name}`, before.join(), report.errors[name]!.join()]);
  train(again, 10, 16);
  report.equal.push([`${name} resumed`, straight, digest(weightBits(again))]);
  report.hashes[name] = straight;
  again.destroy();
}

/**
 * For each parameter: the sum of this rank's error, then of the error of the parts that it owns.
 */
function errorSums({ parts }: Engine): number[] {
  const sums = { worker_error: 0, server_error: 0 };
  const list: number[] = [];
  for (const { name, tensor } of parts.state.rankErrors()) {
    const sum = (tensor.toArray() as number[]).reduce((total, x) => total + x, 0);
    if (name === 'worker_error') list.push(sum);
    sums[name] += sum;
    tensor.release();
  }
  return [...list, sums.server_error];
}

async function adrift(report: OneBitReport): Promise<void> {
  const engine = await build({ optimizer: tiny.ZeroOneAdam, steps: 0 });
  train(engine, 0, 10);
  report.adrift = ownHash(engine);
  const { tokens, targets } = tinyBatch(99, engine.device);
  engine.eval();
  noGrad(() => engine.forward<Tensor>(tokens, targets));
  report.settled = ownHash(engine);
  noGrad(() => engine.forward<Tensor>(tokens, targets));
  report.equal.push(['settled once', report.settled, ownHash(engine)]);
  tokens.dispose();
  targets.dispose();
  engine.train();
  train(engine, 10, 14);
  report.hashes['ZeroOneAdam evaluated'] = digest(weightBits(engine));
  engine.destroy();
}

async function narrow(precision: Precision, report: OneBitReport): Promise<void> {
  for (const name of names) {
    const engine = await build({ optimizer: tiny[name], precision, steps: 0 });
    const losses = train(engine, 0, 24);
    const key = `${name} ${precision}`;
    report.hashes[key] = digest(weightBits(engine));
    report.skipped[key] = engine.skippedSteps;
    report.losses[key] = losses;
    engine.destroy();
  }
}

async function main(): Promise<void> {
  const job = JSON.parse(process.argv[2] ?? '') as OneBitJob;
  const world = await initDistributed(job.kind === 'cpu' ? { device: 'cpu' } : {});
  const report: OneBitReport = {
    distances: {},
    kinds: [],
    ratios: 0,
    hashes: {},
    equal: [],
    adrift: '',
    settled: '',
    skipped: {},
    errors: {},
    losses: {},
  };
  if (job.loads) {
    for (const name of names) {
      const engine = await build({ optimizer: tiny[name], steps: 0 });
      await engine.loadCheckpoint(`${job.dir}/${name}`);
      report.errors[name] = errorSums(engine);
      report.losses[name] = train(engine, 10, 16);
      report.hashes[name] = digest(weightBits(engine));
      engine.destroy();
    }
  } else {
    for (const name of names) {
      await againstFormula(name, true, report);
      await againstFormula(name, false, report);
    }
    await warmUps(report);
    for (const name of names) await resume(name, job.dir, report);
    await adrift(report);
    for (const precision of ['fp16', 'bf16'] as const) await narrow(precision, report);
  }
  await world.destroy();
  console.log(JSON.stringify(report));
}

void main();
