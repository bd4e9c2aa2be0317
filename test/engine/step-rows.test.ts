// Tests the row of each rank in the exchange of the norm: where its numbers are, and which of them
// sums and losses count.
import { Mesh } from '../../lib/comm/mesh.js';
import { MeshShape } from '../../lib/comm/mesh-shape.js';
import {
  assignColumns,
  assignStageColumns,
  BATCHES,
  StepRows,
} from '../../lib/engine/step/step-rows.js';
import { liveTensors } from '../../lib/index.js';
import { Linear } from '../../lib/nn/index.js';
import { cpu } from '../../lib/runtime/device.js';
import { noGrad, scope, Tensor } from '../../lib/tensor/index.js';

interface Given {
  size: number;
  rank: number;
  lossRanks: number[];
  normRanks: number[];
}

const own = (count: number, ranks: number[]) => ({
  count,
  ownColumns: Array.from({ length: count }, (_, i) => i),
  runs: [{ offset: 0, numel: count, ranks }],
});

/** Rows of a rank; `rowOf` gives the rows that the other ranks send. */
function rowsOf(
  { size, rank, lossRanks, normRanks }: Given,
  columns: never,
  others: number[][] = [],
) {
  const world = {
    size,
    rank,
    allGather(flat: Tensor, ownRow: Tensor) {
      const width = ownRow.numel;
      const values = ownRow.toArray() as number[];
      const rows = Array.from({ length: size }, (_, one) =>
        one === rank ? values : (others[one] ?? new Array(width).fill(0)),
      );
      noGrad(() => scope(() => void flat.copy_(Tensor.from(rows.flat()))));
      return { wait() {} };
    },
  };
  return new StepRows(cpu(), { world, lossRanks, normRanks } as never, columns);
}

const set = (tensor: Tensor | undefined, value: number): void =>
  void noGrad(() => (tensor as Tensor).fill_(value));

/** The row that a rank with these numbers sends. */
function sendRow(columns: never, given: Given, fill: (rows: StepRows) => void): number[] {
  const rows = rowsOf(given, columns);
  fill(rows);
  const width = rows.all.numel / given.size;
  const row = (rows.all.reshape([-1]).toArray() as number[]).slice(
    given.rank * width,
    (given.rank + 1) * width,
  );
  rows.dispose();
  return row;
}

const four = { size: 4, lossRanks: [1, 3], normRanks: [0, 1, 2, 3] };

test('every number of a rank has its own column in the row of the rank', () => {
  const columns = own(2, four.normRanks) as never;
  const rows = rowsOf({ ...four, rank: 2 }, columns);
  const digests = BATCHES.flatMap((what) => {
    const { bits, outline } = rows.digests[what];
    return [bits, outline];
  });
  const all = [...rows.squares, rows.lossSum, rows.stop, rows.micros, rows.busy, ...digests];
  for (const [i, one] of all.entries()) set(one, i + 1);
  const values = Float32Array.from(rows.all.reshape([-1]).toArray() as number[]);
  const width = values.length / 4;
  expect(width).toBe(all.length);
  expect([...values.slice(2 * width, 3 * width)].sort((a, b) => a - b)).toEqual(
    all.map((_, i) => i + 1),
  );
  expect(values.filter((value) => value !== 0)).toHaveLength(all.length);
  const read = rows.read(values);
  expect([...read.squaresOf(2)]).toEqual([1, 2]);
  expect([read.lossOf(2), read.requestsStop(2), read.microsOf(2), read.busyOf(2)]).toEqual([
    3,
    true,
    5,
    6,
  ]);
  expect([read.lossOf(1), read.requestsStop(1), read.microsOf(3), read.busyOf(0)]).toEqual([
    0,
    false,
    0,
    0,
  ]);
  BATCHES.forEach((what, i) => {
    const bits = new Int32Array(Float32Array.of(7 + 2 * i).buffer)[0];
    expect(read.digestOf(2, what)).toEqual({ bits, outline: 8 + 2 * i });
    expect(read.digestOf(3, what)).toEqual({ bits: 0, outline: 0 });
  });
  rows.dispose();
});

test('the mean loss has the ranks that share the loss, and their micro-batches', () => {
  const columns = own(1, four.normRanks) as never;
  const others = [0, 1, 2, 3].map((rank) =>
    sendRow(columns, { ...four, rank }, (rows) => set(rows.lossSum, 10 ** rank)),
  );
  const mean = (lossRanks: number[], micros: number): number => {
    const rows = rowsOf({ ...four, rank: 0, lossRanks }, columns, others);
    set(rows.lossSum, 1);
    rows.gather();
    const loss = rows.meanLoss(micros);
    const value = loss.item() as number;
    loss.dispose();
    rows.dispose();
    return value;
  };
  expect(mean([1, 3], 2)).toBe((10 + 1000) / 4);
  expect(mean([2], 1)).toBe(100);
  expect(mean([0, 1, 2, 3], 1)).toBe(1111 / 4);
});

/** The sums of squares that the norm counts, if rank r sends 10 r + column in each own column. */
function partials(given: Given, columnsAt: (rank: number) => { ownColumns: readonly number[] }) {
  const fill = (rank: number) => (rows: StepRows) => {
    const { ownColumns: columns } = columnsAt(rank);
    for (const [i, one] of rows.squares.entries()) set(one, 10 * rank + (columns[i] as number));
  };
  const others = Array.from({ length: given.size }, (_, rank) =>
    sendRow(columnsAt(rank) as never, { ...given, rank }, fill(rank)),
  );
  const rows = rowsOf(given, columnsAt(given.rank) as never, others);
  fill(given.rank)(rows);
  rows.gather();
  const found = rows.partials.contiguous().toArray();
  rows.dispose();
  return found;
}

test('the norm counts the rows of its ranks', () => {
  const at = (ranks: number[]) => () => own(2, ranks);
  const sums = (normRanks: number[]) => partials({ ...four, rank: 1, normRanks }, at(normRanks));
  expect(sums([0, 1, 2, 3])).toEqual([0, 1, 10, 11, 20, 21, 30, 31]);
  expect(sums([1, 3])).toEqual([10, 11, 30, 31]);
  expect(sums([1])).toEqual([10, 11]);
  // Unequal distances.
  expect(sums([0, 1, 3])).toEqual([0, 1, 10, 11, 30, 31]);
});

test('the stages of a pipeline count their own columns, in the order of layers', () => {
  const stages = [
    [0, 1],
    [2, 3],
  ];
  const at = (rank: number) => assignStageColumns([0, 1, 1, 0], stages, rank < 2 ? 0 : 1);
  const expected = [0, 21, 22, 3, 10, 31, 32, 13];
  for (const rank of [0, 3]) {
    const normRanks = rank < 2 ? [0, 1] : [2, 3];
    expect(partials({ ...four, rank, normRanks }, at)).toEqual(expected);
  }
});

test('a pipeline rank counts each unit in the first of its layers that reads it', () => {
  // Two ranks with two stages each: rank 0 has layers 0 and 2, rank 1 layers 1 and 3.
  const layers = Array.from({ length: 4 }, () => ({ modules: [new Linear(2, 2)] }));
  const unitOf = (layer: number, which: number) => {
    const parameter = layers[layer]?.modules[0]?.parameters()[which];
    return { unit: { parameters: [{ parameter }] } };
  };
  const columnsAt = (rank: number, partitions: object[], others: number[]) => {
    const sent: unknown[] = [];
    const world = {
      size: 2,
      rank,
      device: cpu(),
      allGather(all: Tensor, row: Tensor, options: object) {
        sent.push(row.toArray(), options);
        const rows = [row.toArray() as number[], others];
        if (rank === 1) rows.reverse();
        noGrad(() => all.copy_(Tensor.from(rows.flat(), { shape: [2, 4] })));
        return { wait() {} };
      },
    };
    const mesh = new Mesh(MeshShape.over(2, { pp: 2 }), world as never, null as never);
    const place = { rank, ranks: 2 };
    const pipeline = { layers, starts: [0, 1, 2, 3, 4], place, ownStages: [rank, rank + 2] };
    const ranks = { world, mesh, normRanks: [rank], tensorGroup: null };
    return { sent, columns: assignColumns(pipeline as never, partitions as never, ranks as never) };
  };
  const runs = [0, 1, 0, 1].map((rank, offset) => ({ offset, numel: 1, ranks: [rank] }));
  const first = columnsAt(0, [unitOf(0, 0), unitOf(2, 1)], [0, 1, 0, 1]);
  expect(first.sent).toEqual([[1, 0, 1, 0], { purpose: 'units of stages' }]);
  expect(first.columns).toEqual({ count: 4, ownColumns: [0, 2], runs });
  const second = columnsAt(1, [unitOf(1, 1), unitOf(3, 0)], [1, 0, 1, 0]);
  expect(second.columns).toEqual({ count: 4, ownColumns: [1, 3], runs });
  // A unit that no layer of the rank reads is counted in its first layer.
  expect(columnsAt(1, [unitOf(0, 0), unitOf(3, 0)], [1, 0, 1, 0]).sent[0]).toEqual([0, 1, 0, 1]);
  const whole = { place: { ranks: 1 } };
  for (const pipeline of [null, whole]) {
    const ranks = { normRanks: [0, 3] };
    expect(assignColumns(pipeline as never, [unitOf(0, 0)] as never, ranks as never)).toEqual({
      count: 1,
      ownColumns: [0],
      runs: [{ offset: 0, numel: 1, ranks: [0, 3] }],
    });
  }
});

test('rows release all that they allocated', () => {
  const before = liveTensors();
  for (const normRanks of [
    [0, 1, 2, 3],
    [0, 1, 3],
  ]) {
    const rows = rowsOf({ ...four, rank: 1, normRanks }, own(2, normRanks) as never);
    expect(liveTensors()).toBeGreaterThan(before);
    rows.gather();
    rows.dispose();
    expect(liveTensors()).toBe(before);
  }
});
