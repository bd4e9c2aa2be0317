// One rank that runs every collective with every dtype, op and size, and reports wrong results.

import {
  CommsLogger,
  type Distributed,
  initDistributed,
  type ProcessGroup,
} from '../../lib/comm/index.js';
import type { ReduceOp, Work } from '../../lib/comm/process-group.js';
import { cpu, device as findDevice, nn, onesLike, Tensor } from '../../lib/index.js';
import type { DeviceKind } from '../../lib/runtime/device.js';
import { type DType, isFloating } from '../../lib/runtime/dtype.js';
import { watchWork } from '../../lib/runtime/watched-work.js';
import { claim } from '../../lib/tensor/index.js';

/** The one argument, as JSON. */
export interface CollectiveJob {
  kind: DeviceKind;
}

const SIZES = [0, 1, 7, 130];
const LARGE = 1_000_003;
const DTYPES: readonly DType[] = ['f32', 'f16', 'bf16', 'f64', 'i32', 'i64', 'u8'];
const OPS: readonly ReduceOp[] = ['sum', 'avg', 'min', 'max', 'prod'];
const POISON = 77;

const failures: string[] = [];
let checks = 0;

/** Element i of rank `rank`: small integers, so that any order of summation gives the same bits. */
function element(rank: number, i: number, op: ReduceOp | null, dtype: DType): number {
  const hash = Math.imul((i + 1) * 2654435761 + rank * 40503, 2246822519) >>> 16;
  if (op === 'prod') return 1 + (hash % 2);
  return (hash % 9) - (dtype === 'u8' ? 0 : 4);
}

function combine(op: ReduceOp, values: readonly number[]): number {
  switch (op) {
    case 'sum':
      return values.reduce((a, b) => a + b);
    case 'avg':
      return values.reduce((a, b) => a + b) / values.length;
    case 'min':
      return Math.min(...values);
    case 'max':
      return Math.max(...values);
    case 'prod':
      return values.reduce((a, b) => a * b);
  }
}

/** A tensor of `dtype` on the group's device with value(i) as element i. */
function make(
  group: ProcessGroup,
  dtype: DType,
  length: number,
  value: (i: number) => number,
): Tensor {
  const values = Float64Array.from({ length }, (_, i) => value(i));
  return Tensor.from(values, { dtype, device: group.device });
}

/**
 * Compares bit for bit with `expected`. Averages over GPUs divide each term, so they may differ by
 * rounding.
 */
function check(name: string, got: Tensor, expected: (i: number) => number, close = false): void {
  checks++;
  const values = Float64Array.from({ length: got.numel }, (_, i) => expected(i));
  const expectedTensor = Tensor.from(values, { dtype: got.dtype, device: got.device });
  const a = got.toArray();
  const b = expectedTensor.toArray();
  const wrong = a.findIndex((x, i) => {
    const y = b[i] as number;
    return close ? Math.abs(x - y) > 2 ** -7 * Math.max(1, Math.abs(y)) : !Object.is(x, y);
  });
  if (wrong >= 0) failures.push(`${name}: element ${wrong} is ${a[wrong]}, not ${b[wrong]}`);
  expectedTensor.dispose();
  got.dispose();
}

interface Trial {
  group: ProcessGroup;
  dtype: DType;
  size: number;
}

function reductions(trial: Trial, ops: readonly ReduceOp[]): void {
  const { group, dtype, size } = trial;
  const n = group.size;
  const everyone = Array.from({ length: n }, (_, r) => r);
  for (const op of ops) {
    if (op === 'avg' && !isFloating(dtype)) continue;
    const close = op === 'avg' && group.device.kind !== 'cpu';
    const name = `${op} ${dtype} x ${size} on ${n}`;
    const at = (i: number) =>
      combine(
        op,
        everyone.map((r) => element(r, i, op, dtype)),
      );
    const mine = (i: number) => element(group.rank, i, op, dtype);

    const inPlace = make(group, dtype, size, mine);
    group.allReduce(inPlace, { op }).wait();
    check(`allReduce ${name}`, inPlace, at, close);

    const input = make(group, dtype, size * n, mine);
    const shard = make(group, dtype, size, () => POISON);
    group.reduceScatter(shard, input, { op }).wait();
    check(`reduceScatter ${name}`, shard, (i) => at(group.rank * size + i), close);
    check(`reduceScatter ${name}: the input`, input, mine);

    const root = (n - 1) % n;
    const reduced = make(group, dtype, size, mine);
    group.reduce(reduced, root, { op }).wait();
    check(`reduce ${name}`, reduced, group.rank === root ? at : mine, close && group.rank === root);
  }
}

function movements({ group, dtype, size }: Trial): void {
  const n = group.size;
  const name = `${dtype} x ${size} on ${n}`;
  const of = (rank: number) => (i: number) => element(rank, i, null, dtype);

  const gathered = make(group, dtype, size * n, () => POISON);
  const localTensor = make(group, dtype, size, of(group.rank));
  group.allGather(gathered, localTensor).wait();
  check(`allGather ${name}`, gathered, (i) => of(Math.floor(i / size))(i % size));
  localTensor.dispose();

  const fullTensor = make(group, dtype, size * n, (i) => {
    return Math.floor(i / size) === group.rank ? of(group.rank)(i % size) : POISON;
  });
  const slot = fullTensor.alias([size], [1], group.rank * size);
  group.allGather(fullTensor, slot).wait();
  slot.dispose();
  check(`allGather in place ${name}`, fullTensor, (i) => of(Math.floor(i / size))(i % size));

  const sent = make(group, dtype, size, of(group.rank));
  group.broadcast(sent, 1 % n).wait();
  check(`broadcast ${name}`, sent, of(1 % n));

  const out = make(group, dtype, size * n, () => POISON);
  const parts = make(group, dtype, size * n, of(group.rank));
  group.allToAll(out, parts).wait();
  check(`allToAll ${name}`, out, (i) => {
    return of(Math.floor(i / size))(group.rank * size + (i % size));
  });
  parts.dispose();

  const around = make(group, dtype, size, () => POISON);
  const token = make(group, dtype, size, of(group.rank));
  const next = (group.rank + 1) % n;
  const previous = (group.rank + n - 1) % n;
  const steps = [() => group.send(token, next), () => group.recv(around, previous)];
  const works = (group.rank === 0 ? steps : steps.reverse()).map((step) => step());
  for (const work of works) work.wait();
  check(`send and recv ${name}`, around, of(previous));
  token.dispose();
}

/** Ranks split an inner dim: each row is exchanged separately. */
function inRows({ group, dtype, size }: Trial, rows: number): void {
  const n = group.size;
  const name = `${rows} rows of ${dtype} x ${size} on ${n}`;
  const of = (rank: number, i: number) => element(rank, i, 'sum', dtype);
  const everyone = Array.from({ length: n }, (_, rank) => rank);
  const row = (i: number, of: number) => Math.floor(i / of);

  const localTensor = make(group, dtype, rows * size, (i) => of(group.rank, i));
  const fullTensor = make(group, dtype, rows * size * n, () => POISON);
  group.allGather(fullTensor, localTensor, { rows }).wait();
  check(`allGather in ${name}`, fullTensor, (i) => {
    return of(row(i % (size * n), size), row(i, size * n) * size + (i % size));
  });
  check(`allGather in ${name}: the input`, localTensor, (i) => of(group.rank, i));

  const input = make(group, dtype, rows * size * n, (i) => of(group.rank, i));
  const part = make(group, dtype, rows * size, () => POISON);
  group.reduceScatter(part, input, { rows }).wait();
  check(`reduceScatter in ${name}`, part, (i) => {
    const at = (row(i, size) * n + group.rank) * size + (i % size);
    return combine(
      'sum',
      everyone.map((rank) => of(rank, at)),
    );
  });
  check(`reduceScatter in ${name}: the input`, input, (i) => of(group.rank, i));
}

/** Invalid row counts throw before the exchange. */
function refusedRows(group: ProcessGroup): void {
  const localTensor = make(group, 'f32', 6, () => 0);
  const fullTensor = make(group, 'f32', 6 * group.size, () => 0);
  const slot = fullTensor.alias([6], [1], 6 * group.rank);
  const calls: [string, () => unknown][] = [
    ['DS_SHAPE', () => group.allGather(fullTensor, localTensor, { rows: 4 })],
    ['DS_SHAPE', () => group.reduceScatter(localTensor, fullTensor, { rows: 0 })],
    ['DS_SHAPE', () => group.reduceScatter(localTensor, fullTensor, { rows: 1.5 })],
    ['DS_ARGUMENT', () => group.allGather(fullTensor, slot, { rows: 2 })],
    ['DS_ARGUMENT', () => group.reduceScatter(slot, fullTensor, { rows: 3 })],
  ];
  for (const [code, call] of calls) {
    let got = 'nothing';
    try {
      call();
    } catch (error) {
      got = String((error as { code?: string }).code);
    }
    if (got !== code) failures.push(`${call}: ${got}, not ${code}`);
  }
  for (const each of [slot, fullTensor, localTensor]) each.dispose();
}

/**
 * Outputs count as changed for a backward that has saved them. They must not belong to an engine.
 */
function checkChanges(group: ProcessGroup): void {
  const slots = (): Tensor => make(group, 'f32', 3 * group.size, () => 1);
  const one = (): Tensor => make(group, 'f32', 3, () => 1);
  const calls: Record<string, [target: () => Tensor, call: (target: Tensor) => Work]> = {
    allReduce: [one, (x) => group.allReduce(x)],
    'allReduce into another': [one, (x) => group.allReduce(one(), { output: x })],
    broadcast: [one, (x) => group.broadcast(x, 0)],
    reduce: [one, (x) => group.reduce(x, 0)],
    reduceScatter: [one, (x) => group.reduceScatter(x, slots())],
    allGather: [slots, (x) => group.allGather(x, one())],
    allToAll: [slots, (x) => group.allToAll(x, slots())],
    ...(group.size === 2 ? { recv: [one, (x) => exchange(group, x, one())] } : {}),
  };
  for (const [name, [target, call]] of Object.entries(calls)) {
    const saved = target();
    const product = onesLike(saved).requireGrad().mul(saved).sum();
    call(saved).wait();
    expectCode(`backward after ${name}`, 'DS_AUTOGRAD', () => product.backward());
    const owned = new nn.Parameter(saved.shape, nn.init.zeros);
    owned.moveTo(group.device, 'f32');
    claim(owned, group);
    expectCode(`${name} of an engine`, 'DS_ARGUMENT', () => call(owned));
  }
}

/** Two ranks send to each other; a refused recv sends nothing. */
function exchange(group: ProcessGroup, into: Tensor, from: Tensor): Work {
  const peer = 1 - group.rank;
  if (group.rank === 1) {
    const work = group.recv(into, peer);
    group.send(from, peer).wait();
    return work;
  }
  into.requireWritable('recv');
  group.send(from, peer).wait();
  return group.recv(into, peer);
}

function expectCode(label: string, code: string, body: () => unknown): void {
  let got = 'nothing';
  try {
    body();
  } catch (error) {
    got = String((error as { code?: string }).code);
  }
  checks++;
  if (got !== code) failures.push(`${label}: ${got}, not ${code}`);
}

/** Several collectives in flight, with waits later and out of order. */
async function checkOverlap(group: ProcessGroup): Promise<void> {
  const tensors = Array.from({ length: 8 }, (_, k) => {
    return make(group, 'f32', 1000 + k, () => k + group.rank);
  });
  const works: Work[] = tensors.map((t) => group.allReduce(t));
  await works[7]?.promise;
  const ranks = (group.size * (group.size - 1)) / 2;
  for (const k of [3, 7, 0, 1, 2, 6, 5, 4]) {
    works[k]?.wait();
    check(`overlapping ${k}`, tensors[k] as Tensor, () => k * group.size + ranks);
  }
}

/** On the CPU, sums have the bits of a left-to-right sum for any chunk sizes. */
function checkOrder(group: ProcessGroup): void {
  const size = 4099;
  const value = (rank: number) => (i: number) =>
    Math.fround(Math.sin(i * 12.9898 + rank * 78.233) * 10 ** ((i % 13) - 6));
  const fold = (i: number) => {
    let sum = value(0)(i);
    for (let r = 1; r < group.size; ++r) sum = Math.fround(sum + value(r)(i));
    return sum;
  };
  const fullTensor = make(group, 'f32', size, value(group.rank));
  group.allReduce(fullTensor).wait();
  check('a sum in the order of the ranks', fullTensor, fold);
  const cut = make(group, 'f32', size, value(group.rank));
  for (let begin = 0; begin < size; begin += 1000) {
    const part = cut.alias([Math.min(1000, size - begin)], [1], begin);
    group.allReduce(part).wait();
    part.dispose();
  }
  check('the same sum in parts', cut, fold);
  const n = group.size;
  const input = make(group, 'f32', 100 * n, value(group.rank));
  const shard = input.alias([100], [1], 100 * group.rank);
  group.reduceScatter(shard, input).wait();
  check('the same sum scattered, in place', shard, (i) => fold(100 * group.rank + i));
  input.dispose();
}

/** With a logger each collective is counted, timed, and complete when its call returns. */
function checkLog(group: ProcessGroup): void {
  const logger = new CommsLogger();
  group.logger = logger;
  const tensor = make(group, 'f32', 256, () => 1);
  const wide = make(group, 'f32', 256 * group.size, () => POISON);
  if (!group.allReduce(tensor).done) failures.push('a logged collective was not over');
  group.allReduce(tensor);
  group.allGather(wide, tensor);
  group.logger = null;
  group.barrier();
  const seen = logger.totals().map(({ kind, bytes, count }) => `${kind} ${bytes} ${count}`);
  const expected = ['allGather 1024 1', 'allReduce 1024 2'];
  if (seen.join() !== expected.join()) failures.push(`logged ${seen.join()}`);
  check('a logged sum', tensor, () => group.size ** 2);
  wide.dispose();
}

/** The threads of CPU collectives report the bytes of all rows in a trace. */
function checkTrace(group: ProcessGroup): void {
  const end = watchWork({
    enqueued: (_work, enqueue) => enqueue(),
    waited: (_what, wait) => wait(),
  });
  inRows({ group, dtype: 'f32', size: 7 }, 3);
  const seen = end().map(({ kind, name, bytes }) => `${kind} ${name} ${bytes}`);
  const expected = ['collective allGather 84', 'collective reduceScatter 84'];
  if (seen.join() !== expected.join()) failures.push(`traced ${seen.join()}`);
}

async function subGroups(job: Distributed): Promise<void> {
  const { worldSize, rank } = job;
  const reversed = Array.from({ length: worldSize }, (_, i) => worldSize - 1 - i);
  const groups = [await job.newGroup(reversed)];
  if (worldSize > 2) {
    groups.push(await job.newGroup([0, worldSize - 1]));
    groups.push(await job.newGroup([1]));
    groups.push(await job.newGroup([0, worldSize - 1]));
  }
  for (const group of groups) {
    if (!group) continue;
    if (group.ranks[group.rank] !== rank) failures.push(`${group.name}: place ${group.rank}`);
    reductions({ group, dtype: 'f32', size: 7 }, ['sum', 'max']);
    if (group.size > 1) movements({ group, dtype: 'i64', size: 3 });
  }
}

async function main({ kind }: CollectiveJob): Promise<void> {
  const on = kind === 'cpu' ? cpu() : findDevice(`cuda:${process.env.LOCAL_RANK}`);
  const job = await initDistributed({ device: on, timeout: 0.5 });
  const { world } = job;
  const known = kind === 'cpu' ? DTYPES : DTYPES.filter((dtype) => dtype !== 'f64');
  for (const dtype of known) {
    for (const size of SIZES) {
      reductions({ group: world, dtype, size }, OPS);
      movements({ group: world, dtype, size });
    }
  }
  const large = world.size === 2 ? LARGE : Math.floor(LARGE / 10);
  reductions({ group: world, dtype: 'bf16', size: large }, ['sum']);
  movements({ group: world, dtype: 'f32', size: large });
  for (const dtype of known) {
    for (const [rows, size] of [
      [1, 5],
      [2, 1],
      [3, 70],
      [5, 0],
    ] as const) {
      inRows({ group: world, dtype, size }, rows);
    }
  }
  // More than the CPU back end reduces in one pass.
  if (world.size === 2) inRows({ group: world, dtype: 'f32', size: 270_001 }, 2);
  refusedRows(world);
  checkChanges(world);
  await checkOverlap(world);
  if (kind === 'cpu') {
    checkOrder(world);
    checkTrace(world);
  }
  checkLog(world);
  await subGroups(job);
  world.barrier().synchronize();
  await job.destroy();
  process.stdout.write(`${JSON.stringify({ checks, failures })}\n`);
}

main(JSON.parse(process.argv[2] ?? '{}') as CollectiveJob).catch((error) => {
  console.error(error);
  process.exitCode = 1;
});
