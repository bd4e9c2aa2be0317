// Adafactor: sums along rows and columns of matrices and of parts of them, factors, directions, and
// the last pass.
import type { DType } from '../../../lib/runtime/dtype.js';
import type { MatrixPart } from '../../../lib/runtime/kernels.generated.js';
import {
  closeSameBits,
  exact,
  inPlaceOperand,
  input,
  type MatrixCase,
  type Operand,
  opCase,
  output,
  sameAs,
} from './harness.js';
import { aligned, unaligned } from './layouts.js';
import type { Random } from './numbers.js';

const { abs, max, sqrt } = Math;

const narrow = ['f32', 'f16', 'bf16'] as const;

const DECAY = 0.7;
const EPS = 1e-3;
const FACTOR = 0.5;

/** Elements [from, from + n) of `matrices` matrices. */
interface Part {
  matrices: number;
  rows: number;
  columns: number;
  from: number;
  n: number;
}

const all = (matrices: number, rows: number, columns: number): Part => ({
  matrices,
  rows,
  columns,
  from: 0,
  n: matrices * rows * columns,
});

const partArgs = ({ matrices, rows, columns, from }: Part): MatrixPart => ({
  from,
  matrices,
  rows: matrices * rows,
  columns,
});

const parts: Part[] = [
  all(1, 1, 1),
  all(1, 5, 7),
  all(1, 64, 65),
  all(1, 200, 33),
  all(1, 3, 5000),
  all(1, 5000, 1),
  all(7, 3, 5),
  all(2, 130, 257),
  { ...all(1, 200, 33), from: 100, n: 3333 },
  { ...all(1, 3, 5000), from: 4999, n: 5003 },
  { ...all(3, 70, 9), from: 623, n: 640 },
  { ...all(2, 5, 7), from: 36, n: 0 },
];

const nameOf = ({ matrices, rows, columns, from, n }: Part): string =>
  `${matrices} x [${rows}, ${columns}] from ${from}, ${n}`;

const control = (apply: boolean): Operand => input('f32', [4], [FACTOR, apply ? 1 : 0, 1, 1]);
const layoutOf = (n: number) => (n % 2 ? unaligned : aligned);
const flush = (x: number): number => (abs(x) < 2 ** -126 ? 0 : x);
const checkOf = (dtype: DType, apply: boolean) =>
  apply ? closeSameBits(dtype, 1, 'tensor') : exact;
const f64Sums = closeSameBits('f32', 1, 'element');

/** The row over all matrices, and the column in its matrix, of element i of a part. */
function placeOf({ from, rows, columns }: Part, i: number): [row: number, column: number] {
  const row = Math.floor((from + i) / columns);
  return [row, Math.floor(row / rows) * columns + ((from + i) % columns)];
}

function sums(dtype: DType, part: Part, apply = true, size = 1): MatrixCase {
  const { n, rows, columns, matrices } = part;
  return opCase({
    op: 'AdafactorSums',
    dtype,
    title: `${nameOf(part)}${apply ? '' : ' skipped'}${size < 1 ? ' tiny' : ''}`,
    build: (random) => ({
      operands: {
        master: input('f32', [n], random.normal(n), layoutOf(n)),
        grad: input(
          dtype,
          [n],
          random.normal(n).map((x) => x * size),
          layoutOf(n),
        ),
        squares: output('f64', [1], f64Sums),
        rows: output('f64', [matrices * rows], f64Sums),
        columns: output('f64', [matrices * columns], f64Sums),
        control: control(apply),
      },
      args: { part: partArgs(part) },
      reference({ master, grad }) {
        const out = {
          squares: [0],
          rows: new Float64Array(matrices * rows),
          columns: new Float64Array(matrices * columns),
        };
        if (!apply) return out;
        for (let i = 0; i < n; ++i) {
          const [row, column] = placeOf(part, i);
          const g = flush(flush(grad![i]!) * FACTOR);
          out.squares[0]! += master![i]! ** 2;
          out.rows[row]! += g * g;
          out.columns[column]! += g * g;
        }
        return out;
      },
    }),
  });
}

function factors(part: Part, apply = true, eps = EPS): MatrixCase {
  const { matrices, rows, columns } = part;
  const [rowCount, columnCount] = [matrices * rows, matrices * columns];
  const check = checkOf('f32', apply);
  return opCase({
    op: 'AdafactorFactors',
    dtype: 'f32',
    title: `${nameOf(part)} eps ${eps}${apply ? '' : ' skipped'}`,
    build(random) {
      const state = (n: number) => input('f32', [n], random.uniform(n, eps === 0 ? 0 : 0.1, 1));
      // Without eps, the first row and column have never had a gradient.
      const sum = (n: number) =>
        input(
          'f64',
          [n],
          random.uniform(n, 1, 50).map((x, i) => (eps === 0 && i === 0 ? 0 : x)),
        );
      const zeroOperand = (operand: Operand): Operand => {
        const values = Float64Array.from(operand.values!);
        if (eps === 0 && values.length > 0) values[0] = 0;
        return { ...operand, values };
      };
      const factor = (n: number) =>
        apply ? output('f32', [n], check) : inPlaceOperand(state(n), check);
      return {
        operands: {
          rowSums: sum(rowCount),
          columnSums: sum(columnCount),
          row: inPlaceOperand(zeroOperand(state(rowCount)), check),
          column: inPlaceOperand(zeroOperand(state(columnCount)), check),
          rowFactor: factor(rowCount),
          columnFactor: factor(columnCount),
          control: control(apply),
        },
        args: { part: partArgs({ ...part, from: 0 }), decay: DECAY, eps },
        reference({ rowSums, columnSums, row, column, rowFactor, columnFactor }) {
          if (!apply) return { row, column, rowFactor, columnFactor };
          const moveAverage = (old: Float64Array, total: Float64Array, count: number) =>
            old.map((x, i) => DECAY * x + (1 - DECAY) * (total[i]! / count + eps));
          const [r, c] = [
            moveAverage(row!, rowSums!, columns),
            moveAverage(column!, columnSums!, rows),
          ];
          const mean = (m: number) =>
            r.subarray(m * rows, (m + 1) * rows).reduce((a, b) => a + b, 0) / rows;
          return {
            row: r,
            column: c,
            rowFactor: r.map((x, i) => (x === 0 ? 0 : 1 / sqrt(x / mean(Math.floor(i / rows))))),
            columnFactor: c.map((x) => (x === 0 ? 0 : 1 / sqrt(x))),
          };
        },
      };
    },
  });
}

function factorOperands(part: Part, random: Random): Record<'rowFactor' | 'columnFactor', Operand> {
  const { matrices, rows, columns } = part;
  const factor = (n: number) => input('f32', [n], random.uniform(n, 0.5, 3));
  return { rowFactor: factor(matrices * rows), columnFactor: factor(matrices * columns) };
}

function direction(dtype: DType, part: Part, apply = true): MatrixCase {
  const { n } = part;
  return opCase({
    op: 'AdafactorDirection',
    dtype,
    title: `${nameOf(part)}${apply ? '' : ' skipped'}`,
    build: (random) => ({
      operands: {
        grad: input(dtype, [n], random.normal(n), layoutOf(n)),
        ...factorOperands(part, random),
        squares: output('f64', [1], f64Sums),
        control: control(apply),
      },
      args: { part: partArgs(part) },
      reference({ grad, rowFactor, columnFactor }) {
        let sum = 0;
        for (let i = 0; apply && i < n; ++i) {
          const [row, column] = placeOf(part, i);
          sum += (rowFactor![row]! * columnFactor![column]! * grad![i]! * FACTOR) ** 2;
        }
        return { squares: [sum] };
      },
    }),
  });
}

function moment(dtype: DType, n: number, { apply = true, eps = EPS } = {}): MatrixCase {
  return opCase({
    op: 'AdafactorMoment',
    dtype,
    title: `[${n}] eps ${eps}${apply ? '' : ' skipped'}`,
    build: (random) => ({
      operands: {
        master: input('f32', [n], random.normal(n), layoutOf(n)),
        v: inPlaceOperand(
          input('f32', [n], random.uniform(n, eps === 0 ? 0 : 0.1, 1), layoutOf(n)),
          checkOf('f32', apply),
        ),
        grad: input(dtype, [n], random.normal(n), layoutOf(n)),
        squares: output('f64', [2], f64Sums),
        control: control(apply),
      },
      args: { decay: eps === 0 ? 0 : DECAY, eps },
      reference({ master, v, grad }) {
        if (!apply) return { v, squares: [0, 0] };
        const decay = eps === 0 ? 0 : DECAY;
        const next = v!.map((x, i) => decay * x + (1 - decay) * ((grad![i]! * FACTOR) ** 2 + eps));
        const squares = [0, 0];
        for (let i = 0; i < n; ++i) {
          squares[0]! += master![i]! ** 2;
          squares[1]! += next[i] === 0 ? 0 : (grad![i]! * FACTOR) ** 2 / next[i]!;
        }
        return { v: next, squares };
      },
    }),
  });
}

interface Last {
  dtype: DType;
  weight: DType | null;
  part: Part;
  isMatrix: boolean;
  beta1: number | null;
  scaleParameter: boolean;
  /** Root mean square of the direction, as given by its sum. */
  length: number;
  apply: boolean;
  /** The weight overwrites the gradient. */
  inPlace?: boolean;
}

const last: Last = {
  dtype: 'f32',
  weight: null,
  part: all(1, 200, 33),
  isMatrix: true,
  beta1: null,
  scaleParameter: true,
  length: 2,
  apply: true,
};

function applyCase(last: Last): MatrixCase {
  const { part, isMatrix, beta1, scaleParameter, length, apply } = last;
  const { n, matrices, rows, columns } = part;
  const rule = {
    lr: 1e-1,
    leastScale: 1e-3,
    clipThreshold: 0.8,
    weightDecay: 0.1,
    beta1: beta1 ?? 9,
    scaleParameter,
  };
  const fullValue = matrices * rows * columns;
  const flags = [
    isMatrix ? '' : 'no matrix',
    apply ? '' : 'skipped',
    last.inPlace ? 'in place' : '',
  ];
  return opCase({
    op: 'AdafactorApply',
    dtype: last.dtype,
    title: `${nameOf(part)} weight ${last.weight} beta1 ${beta1} scaled ${scaleParameter} of ${length} ${flags}`,
    build(random) {
      const layout = layoutOf(n);
      const check = (dtype: DType) => checkOf(dtype, apply);
      const grad = input(last.dtype, [n], random.normal(n), layout);
      const weight = last.weight && output(last.weight, [n], check(last.weight), layout);
      return {
        operands: {
          master: inPlaceOperand(input('f32', [n], random.normal(n), layout), check('f32')),
          grad: last.inPlace ? inPlaceOperand(grad, check(last.dtype)) : grad,
          ...(isMatrix ? factorOperands(part, random) : { rowFactor: null, columnFactor: null }),
          v: isMatrix ? null : input('f32', [n], random.uniform(n, 0, 1), layout),
          moment:
            beta1 === null
              ? null
              : inPlaceOperand(input('f32', [n], random.normal(n), layout), check('f32')),
          weight: last.inPlace ? sameAs(grad, 'grad') : weight,
          parameterSquares: input('f64', [1], [fullValue * 0.25]),
          directionSquares: input('f64', [1], [fullValue * length ** 2]),
          control: control(apply),
        },
        args: { part: partArgs(part), rule },
        reference({ master, grad: g, rowFactor, columnFactor, v, moment: m }) {
          const results = (p: Float64Array, next: Float64Array | undefined) => ({
            master: p,
            moment: next,
            ...(last.inPlace ? { grad: p } : { weight: p }),
          });
          if (!apply) return results(master!, m);
          const rate = scaleParameter ? rule.lr * 0.5 : rule.lr;
          const step = rate / max(1, length / rule.clipThreshold);
          const next = m?.slice();
          const p = master!.map((old, i) => {
            const [row, column] = isMatrix ? placeOf(part, i) : [0, 0];
            const factor = isMatrix
              ? rowFactor![row]! * columnFactor![column]!
              : v![i] === 0
                ? 0
                : 1 / sqrt(v![i]!);
            let u = step * factor * g![i]! * FACTOR;
            if (next) {
              next[i] = rule.beta1 * next[i]! + (1 - rule.beta1) * u;
              u = next[i]!;
            }
            return old - rate * rule.weightDecay * old - u;
          });
          return results(p, next);
        },
      };
    },
  });
}

function passes(): Last[] {
  const list: Last[] = parts.map((part) => ({ ...last, part, weight: 'bf16' }));
  for (const dtype of narrow) {
    list.push(
      { ...last, dtype, weight: dtype, beta1: 0.9 },
      { ...last, dtype, weight: dtype, isMatrix: false, part: all(1, 6001, 1) },
      { ...last, dtype, weight: dtype, inPlace: true },
      { ...last, dtype, weight: dtype, beta1: 0.9, apply: false },
    );
  }
  list.push(
    { ...last, scaleParameter: false },
    { ...last, length: 0.5 },
    { ...last, isMatrix: false, beta1: 0.5, part: all(1, 1029, 1) },
    { ...last, apply: false },
  );
  return list;
}

const wide = all(1, 200, 33);

export const cases: MatrixCase[] = [
  ...parts.map((part) => sums('f32', part)),
  ...narrow.flatMap((dtype) => [sums(dtype, all(1, 130, 70)), sums(dtype, wide, false)]),
  sums('f32', wide, true, 1e-38),
  ...parts.map((part) => factors({ ...part, from: 0 })),
  factors(wide, false),
  factors(wide, true, 0),
  ...parts.map((part) => direction('f32', part)),
  ...narrow.flatMap((dtype) => [direction(dtype, all(1, 130, 70)), direction(dtype, wide, false)]),
  ...narrow.flatMap((dtype) => [moment(dtype, 6001), moment(dtype, 129, { apply: false })]),
  ...[0, 1, 4096, 4097].map((n) => moment('f32', n)),
  moment('f32', 300, { eps: 0 }),
  ...passes().map(applyCase),
];
