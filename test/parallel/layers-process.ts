// One rank that compares split layers and the collectives between them with whole layers.
import { initDistributed, type ProcessGroup } from '../../lib/comm/index.js';
import {
  LossReport,
  linear,
  linearCrossEntropy,
  nn,
  noGrad,
  parallel,
  scope,
  seed,
  type Tensor,
} from '../../lib/index.js';
import { sumOfLinear } from '../../lib/parallel/collectives.js';
import type { DeviceKind } from '../../lib/runtime/device.js';
import type { Stream } from '../../lib/runtime/stream.js';
import {
  Checks,
  compareGradients,
  compareOwners,
  compareWeights,
  computeOn,
  numbers,
  partOf,
  tokens,
} from './checks.js';

/** The one argument, as JSON. */
export interface LayersJob {
  kind: DeviceKind;
}

const checks = new Checks();
const gradOf = ({ grad }: Tensor): number[] => (grad as Tensor).toArray();

function collectives(group: ProcessGroup): void {
  const { rank, size } = group;
  const total = (size * (size + 1)) / 2;
  for (const shape of [[2, 7, 3], [1, 5], [4], [2, 12, 3], [3, 9, 12]]) {
    const x = numbers(shape).requireGrad();
    const tensor = x.mul(1);
    const y = parallel.copyToGroup(tensor, group);
    checks.same('copyToGroup twice', [Number(y === parallel.copyToGroup(tensor, group))], [1]);
    y.mul(rank + 1)
      .add(y)
      .sum()
      .backward();
    checks.near('copyToGroup gradient', gradOf(x), new Array(x.numel).fill(total + size));
    const z = numbers(shape).requireGrad();
    const sum = parallel.sumOverGroup(z.mul(rank + 1), group);
    const expected = z.toArray().map((value) => value * total);
    checks.near('sumOverGroup', sum.toArray(), expected);
    sum.sum().backward();
    checks.near('sumOverGroup gradient', gradOf(z), new Array(z.numel).fill(rank + 1));
    for (const dim of shape.keys()) along(group, shape, dim);
  }
}

/** A linear layer with split inputs has the outputs and gradients of the whole layer. */
function summedProducts(group: ProcessGroup): void {
  const { rank, size } = group;
  for (const lead of [[], [5], [3, 3]]) {
    for (const hasBias of [true, false]) {
      const title = `product of [${lead}] rows, ${hasBias ? 'with' : 'no'} bias`;
      const [x, weight] = [numbers([...lead, 3 * size]), numbers([4, 3 * size], 2)];
      const bias = hasBias ? numbers([4], 5) : null;
      const [part, own] = [x, weight].map((of) =>
        of
          .narrow(-1, rank * 3, 3)
          .contiguous()
          .requireGrad(),
      ) as [Tensor, Tensor];
      const added = bias?.clone().requireGrad() ?? null;
      const sum = sumOfLinear(part, own, added, group);
      const [wholeX, wholeWeight] = [x.requireGrad(), weight.requireGrad()];
      const fullTensor = linear(wholeX, wholeWeight, bias?.requireGrad() ?? null);
      checks.near(title, sum.toArray(), fullTensor.toArray());
      const factor = numbers(fullTensor.shape, 3);
      for (const out of [sum, fullTensor]) out.mul(factor).sum().backward();
      const partGrad = (of: Tensor): number[] =>
        (of.grad as Tensor).narrow(-1, rank * 3, 3).toArray();
      checks.near(`${title}: gradient of x`, gradOf(part), partGrad(wholeX));
      checks.near(`${title}: of the weight`, gradOf(own), partGrad(wholeWeight));
      if (bias && added) checks.near(`${title}: of the bias`, gradOf(added), gradOf(bias));
    }
  }
}

/**
 * Gather and scatter are inverse to each other, and gradients of each other, also with unequal
 * sizes.
 */
function along(group: ProcessGroup, shape: readonly number[], dim: number): void {
  const { rank, size } = group;
  const title = `[${shape}] along ${dim}`;
  const length = shape[dim] as number;
  if (length < size) return;
  const fullTensor = numbers(shape).requireGrad();
  const part = parallel.scatterToGroup(fullTensor, group, dim);
  const again = parallel.gatherFromGroup(part, group, dim, length);
  checks.same(`${title} gathered`, again.toArray(), fullTensor.toArray());
  const factor = numbers(shape, 3);
  again.mul(factor).sum().backward();
  checks.same(`${title} gradient`, gradOf(fullTensor), factor.toArray());
  const other = numbers(shape).requireGrad();
  const reduced = parallel.sumToParts(other.mul(rank + 1), group, dim);
  const total = (size * (size + 1)) / 2;
  checks.near(`${title} reduced`, reduced.toArray(), part.mul(total).toArray());
  const full = parallel.gatherForGroup(reduced, group, dim, length);
  full
    .mul(factor)
    .mul(rank + 1)
    .sum()
    .backward();
  const expected = factor.toArray().map((value) => value * total * (rank + 1));
  checks.near(`${title} gradient of both`, gradOf(other), expected);
}

/**
 * Calls `body`. At each sum over ranks, records the parameters with a gradient and whether compute
 * overlaps.
 */
function watchGathers(
  group: ProcessGroup,
  parameters: readonly nn.Parameter[],
  body: () => void,
): number[][] {
  const seen: number[][] = [];
  const { allReduce, reduceScatter } = group;
  const note = (stream?: Stream): void => {
    seen.push(parameters.map(({ grad }) => Number(grad !== null)));
    const isBeside = stream !== undefined && stream !== group.device.compute;
    checks.same('a stream beside compute', [Number(isBeside)], [1]);
  };
  group.allReduce = (x, options) => {
    note(options?.stream);
    return allReduce.call(group, x, options);
  };
  group.reduceScatter = (part, fullView, options) => {
    note(options?.stream);
    return reduceScatter.call(group, part, fullView, options);
  };
  try {
    body();
  } finally {
    Object.assign(group, { allReduce, reduceScatter });
  }
  return seen;
}

/** One exchange for all layers that read a tensor; it starts before the last weight gradient. */
function overlap(group: ProcessGroup): void {
  const layers = [1, 2, 3].map(() => new parallel.ColumnLinear(new nn.Linear(6, 8), group)) as [
    ...[parallel.ColumnLinear, parallel.ColumnLinear, parallel.ColumnLinear],
  ];
  for (const layer of layers) layer.to(group.device);
  const weights = layers.map(({ weight }) => weight);
  const leaf = numbers([5, 6]).requireGrad();
  const x = leaf.mul(2);
  const out = layers.map((layer) => layer.call(x).square().sum());
  const seen = watchGathers(group, weights, () =>
    (out[0] as Tensor)
      .add(out[1] as Tensor)
      .add(out[2] as Tensor)
      .backward(),
  );
  checks.same('exchanges', [seen.length], [1]);
  checks.same('weights by then', seen.flat(), [0, 1, 1]);
  const again = numbers([5, 6]).requireGrad();
  const losses = [1, 2].map(() => layers[0].call(again).sum());
  for (const loss of losses) loss.backward();
  overlapOfParts(group);
}

/** The same, where ranks gather tokens before a layer and reduce-scatter the gradient. */
function overlapOfParts(group: ProcessGroup): void {
  const { size, rank } = group;
  for (const length of [2 * size, 2 * size + 1]) {
    const layer = new nn.Linear(3, 4).to(group.device);
    const localValue = Math.floor(length / size) + (rank < length % size ? 1 : 0);
    const leaf = numbers([2, localValue, 3]).requireGrad();
    const fullTensor = parallel.gatherForGroup(leaf.mul(1), group, 1, length);
    const loss = layer.call(fullTensor).sum();
    const seen = watchGathers(group, [layer.weight], () => loss.backward());
    checks.same(`sums by parts of ${length}`, seen.flat(), [0]);
    const columns = layer.weight.sum(0).mul(size).toArray();
    const expected = Array.from({ length: 2 * localValue }, () => columns).flat();
    checks.near(`gradient of ${length} parts`, gradOf(leaf), expected);
  }
}

class Block extends nn.Module {
  readonly up: nn.Linear;
  readonly drop = new nn.Dropout(0.4);
  readonly down: nn.Linear;
  constructor(hidden: number, Up: typeof nn.Linear) {
    super();
    this.up = new Up(6, hidden);
    this.down = new nn.Linear(hidden, 6);
  }
  override forward(x: Tensor): Tensor {
    return this.down.call(this.drop.call(this.up.call(x)));
  }
}

/** Output, gradients, initial values and dropout of a split module equal the whole one. */
function compare(
  group: ProcessGroup,
  name: string,
  make: () => nn.Module,
  layers: parallel.TensorPlan['layers'],
  input: Tensor,
): void {
  const run = (model: nn.Module): number[][] => {
    seed(42);
    const x = input.dtype === 'f32' ? input.clone().requireGrad() : input;
    const out = model.call(x) as Tensor;
    out.mul(numbers(out.shape, 5)).sum().backward();
    return [out.toArray(), x.requiresGrad ? gradOf(x) : []];
  };
  seed(7);
  const fullModel = make().to(group.device);
  const expected = run(fullModel);
  seed(7);
  const part = parallel.parallelize(make(), group, { layers }).to(group.device);
  compareWeights(checks, name, fullModel, part);
  run(part).forEach((values, i) => {
    checks.near(`${name} ${i ? 'gradient of x' : 'output'}`, values, expected[i] as number[]);
  });
  parallel.sumPartialGradients(part, group);
  compareGradients(checks, name, fullModel, part);
  compareOwners(checks, name, part, group);
}

function layers(group: ProcessGroup): void {
  const drop = (pieces: number) => ({ style: 'channelDropout', pieces }) as const;
  const pair = { up: 'column', drop: drop(13), down: 'row' } as const;
  const uneven = () => new Block(13, nn.Linear);
  compare(group, 'uneven pair', uneven, pair, numbers([2, 3, 6]));
  const four = { up: { style: 'column', pieces: 4 }, drop: drop(4), down: 'row' } as const;
  compare(group, 'GELU pair', () => new Block(4, nn.LinearGelu), four, numbers([5, 6]));
  const apart = { up: 'columnGathered', down: 'rowScattered' } as const;
  compare(group, 'gathered', () => new Block(10, nn.Linear), apart, numbers([2, 3, 6]));
  const table = () => new nn.Sequential(new nn.Embedding(11, 5, { paddingIdx: 3 }));
  compare(group, 'table', table, { 0: 'vocabulary' }, tokens([3, 9], 11));
  if (group.device.kind !== 'cpu') return; // A GPU does not check indices.
  const cut = parallel.parallelize(table(), group, { layers: { '*': 'vocabulary' } });
  const wrong = tokens([2], 5).add(10);
  checks.throws('a row that is not there', () => cut.call(wrong), 'DS_INDEX');
}

const LOSSES = [
  {},
  { labelSmoothing: 0.2 },
  { divisor: 3.5 },
  { reduction: 'sum', chunkRows: 4 },
  { recompute: true, chunkRows: 3, labelSmoothing: 0.1 },
  { skipIgnored: true },
] as const;

const fillNumbers: nn.Initializer = (out) => out.copy_(numbers(out.shape, 2));
const headOf = (channels: number, classes: number, weightInit: nn.Initializer): nn.Linear =>
  new nn.Linear(channels, classes, { bias: false, weightInit });
const countsOf = (report: LossReport): number[] => [report.read().counted, report.read().correct];

/** Loss, gradients, logits and report with a split vocabulary. */
function losses(group: ProcessGroup): void {
  const [channels, classes] = [4, 13];
  const target = tokens([2, 5], classes);
  target.narrow(1, 2, 1).fill_(-100);
  for (const options of LOSSES) {
    for (const trained of [true, false]) {
      const name = `loss ${JSON.stringify(options)}${trained ? '' : ', frozen'}`;
      const [whole, part] = [1, 2].map(() => headOf(channels, classes, fillNumbers)) as [
        ...[nn.Linear, nn.Linear],
      ];
      for (const layer of [whole, part]) layer.weight.requireGrad(trained);
      const head = new parallel.VocabularyHead(part, group).to(group.device);
      whole.to(group.device);
      const [x, y] = [1, 1].map((from) => numbers([2, 5, channels], from).requireGrad()) as [
        ...[Tensor, Tensor],
      ];
      const [wanted, got] = [new LossReport(group.device), new LossReport(group.device)];
      const one = linearCrossEntropy(x, whole.weight, target, { ...options, report: wanted });
      const other = head.lossOf(y, target, { ...options, report: got });
      checks.near(name, other.toArray(), one.toArray());
      checks.same(`${name} counts`, countsOf(got), countsOf(wanted));
      one.backward();
      other.backward();
      checks.near(`${name} gradient of x`, gradOf(y), gradOf(x));
      if (trained) {
        const all = whole.weight.grad as Tensor;
        const part = partOf(all, head.weight);
        checks.near(`${name} gradient of W`, gradOf(head.weight), part, all.toArray());
      }
      const logits = (of: nn.Module): number[] => noGrad(() => of.call(x) as Tensor).toArray();
      checks.near(`${name} logits`, logits(head), logits(whole));
    }
  }
  ties(group, classes);
}

/** If several classes have the largest logit, the first one is the prediction, on any rank. */
function ties(group: ProcessGroup, classes: number): void {
  const rows = 10;
  const flat: nn.Initializer = (out) => out.fill_(1);
  const fullLayer = headOf(2, classes, flat).to(group.device);
  const head = new parallel.VocabularyHead(headOf(2, classes, flat), group).to(group.device);
  for (const target of [0, 5, classes - 1]) {
    const [wanted, got] = [new LossReport(group.device), new LossReport(group.device)];
    const x = numbers([rows, 2]);
    const all = tokens([rows], 1).add(target);
    linearCrossEntropy(x, fullLayer.weight, all, { report: wanted });
    head.lossOf(x, all, { report: got });
    checks.same(`ties at ${target}`, countsOf(got), countsOf(wanted));
    checks.same(`ties at ${target}, first`, countsOf(got), [rows, target === 0 ? rows : 0]);
  }
}

class Tied extends nn.Module {
  readonly weight: nn.Parameter;
  constructor(readonly table: nn.Embedding) {
    super();
    this.weight = table.weight;
  }
  override forward(x: Tensor): Tensor {
    return x;
  }
}

function mistakes(group: ProcessGroup): void {
  const block = () => new Block(8, nn.Linear);
  const cut =
    (layers: parallel.TensorPlan['layers'], make: () => nn.Module = block) =>
    () =>
      parallel.parallelize(make(), group, { layers });
  const { throws } = { throws: checks.throws.bind(checks) };
  throws('a pattern of nothing', cut({ 'ups.*': 'column' }), 'DS_ARGUMENT', 'ups.*', 'down');
  throws('another module', cut({ drop: 'column' }), 'DS_ARGUMENT', 'Dropout at drop');
  throws('no plan', () => parallel.parallelize(block(), group), 'DS_ARGUMENT', 'tensorPlan');
  throws('few pieces', cut({ up: { style: 'column', pieces: 1 } }), 'DS_ARGUMENT', 'at most 1');
  throws('odd pieces', cut({ up: { style: 'column', pieces: 3 } }), 'DS_ARGUMENT', 'pieces');
  const two = { layers: { up: 'column', down: 'row' } } as const;
  const model = parallel.parallelize(block(), group, two).to(group.device);
  const again = () => parallel.parallelize(model, group, { layers: { up: 'column' } });
  throws('twice', again, 'DS_ARGUMENT', 'already parallel');
  throws('a whole input', () => model.down.call(numbers([2, 8])), 'DS_SHAPE', 'of [6, 8]');
  const tiedModel = () => new Tied(new nn.Embedding(9, 4));
  throws('a tied head left whole', cut({ table: 'vocabulary' }, tiedModel), 'DS_ARGUMENT', 'tied');
}

async function main(): Promise<void> {
  const { kind } = JSON.parse(process.argv[2] as string) as LayersJob;
  const job = await initDistributed(kind === 'cpu' ? { device: kind } : {});
  computeOn(job.world.device);
  const parts = [collectives, summedProducts, overlap, layers, losses, mistakes];
  for (const part of parts) scope(() => part(job.world));
  await job.destroy();
  console.log(JSON.stringify({ failures: checks.failures, count: checks.count }));
}

main().catch((error) => {
  console.error(error);
  process.exitCode = 1;
});
