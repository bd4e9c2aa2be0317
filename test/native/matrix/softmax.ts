// Softmax, log-softmax, cross-entropy and their gradients.
import type { DType } from '../../../lib/runtime/dtype.js';
import { numel } from '../../../lib/runtime/view.js';
import {
  close,
  exact,
  inPlaceOperand,
  input,
  type Layout,
  type MatrixCase,
  opCase,
  output,
  sameAs,
} from './harness.js';
import { aligned, floating, oddSizes, paddedLayout, unaligned } from './layouts.js';
import { type Random, roundTo } from './numbers.js';

const { exp, log, max } = Math;

/** Applies `f` to every row of `columns` values. */
function byRow(
  x: Float64Array,
  columns: number,
  f: (row: Float64Array, r: number) => ArrayLike<number>,
): Float64Array {
  const out = new Float64Array(x.length);
  for (let r = 0; r * columns < x.length; ++r)
    out.set(f(x.subarray(r * columns, (r + 1) * columns), r), r * columns);
  return out;
}

function logSumExp(row: Float64Array): number {
  const largest = row.reduce((a, b) => max(a, b), -Infinity);
  return largest + log(row.reduce((sum, x) => sum + exp(x - largest), 0));
}

const sumOf = (row: ArrayLike<number>): number => Array.from(row).reduce((a, b) => a + b, 0);

const shapes: readonly (readonly number[])[] = [
  ...oddSizes.map((n) => [5, n]),
  [0, 7],
  [1029],
  [2, 3, 33],
  [257, 3],
  [2, 1, 3, 2, 3, 17],
];

function softmaxes(): MatrixCase[] {
  const cases: MatrixCase[] = [];
  for (const dtype of floating) {
    for (const shape of shapes) {
      for (const log of [false, true]) {
        const n = numel(shape);
        const columns = shape.at(-1)!;
        const layout = columns % 2 ? unaligned : aligned;
        const title = `[${shape}]${log ? ' log' : ''}`;
        cases.push(
          opCase({
            op: 'Softmax',
            dtype,
            title,
            build: (random) => ({
              operands: {
                // An offset that overflows unless the maximum is subtracted.
                in: input(
                  dtype,
                  shape,
                  random.normal(n).map((x) => 4 * x + (dtype === 'f16' ? 0 : 200)),
                  layout,
                ),
                out: output(dtype, shape, close(dtype), layout),
              },
              args: { log },
              reference: (v) => ({
                out: byRow(v.in!, columns, (row) => {
                  const lse = logSumExp(row);
                  return row.map((x) => (log ? x - lse : exp(x - lse)));
                }),
              }),
            }),
          }),
        );
        for (const accumulate of [false, true])
          cases.push(softmaxBackward(dtype, shape, log, accumulate));
      }
    }
  }
  return cases;
}

function softmaxBackward(
  dtype: DType,
  shape: readonly number[],
  log: boolean,
  accumulate: boolean,
): MatrixCase {
  const n = numel(shape);
  const columns = shape.at(-1)!;
  return opCase({
    op: 'SoftmaxBackward',
    dtype,
    title: `[${shape}]${log ? ' log' : ''}${accumulate ? ' accumulates' : ''}`,
    build(random) {
      const y = byRow(random.normal(n), columns, (row) => {
        const lse = logSumExp(row);
        return row.map((x) => (log ? x - lse : exp(x - lse)));
      });
      const check = close(dtype, 1, 'tensor');
      const layout = columns % 2 ? unaligned : aligned;
      return {
        operands: {
          out: input(dtype, shape, y, layout),
          dout: input(dtype, shape, random.normal(n), layout),
          dx: accumulate
            ? inPlaceOperand(input(dtype, shape, random.normal(n), layout), check)
            : output(dtype, shape, check, layout),
        },
        args: { log, accumulate },
        reference: (v) => ({
          dx: byRow(v.out!, columns, (row, r) => {
            const dout = v.dout!.subarray(r * columns, (r + 1) * columns);
            const total = sumOf(log ? dout : row.map((value, i) => value * dout[i]!));
            return row.map((value, i) => {
              const dx = log ? dout[i]! - exp(value) * total : value * (dout[i]! - total);
              return dx + (accumulate ? v.dx![r * columns + i]! : 0);
            });
          }),
        }),
      };
    },
  });
}

const IGNORE = -100;

interface Loss {
  dtype: DType;
  index: 'i32' | 'i64';
  rows: number;
  classes: number;
  layout: Layout;
  smoothing: number;
  /** Whether it reports the correct rows. */
  counts: boolean;
  /** For columns that are a part of `all` classes: the first class. */
  part?: { first: number; all: number };
}

function losses(): Loss[] {
  const list: Loss[] = [];
  const plain = { smoothing: 0, counts: false };
  for (const dtype of floating) {
    for (const classes of oddSizes.filter((n) => n > 0)) {
      const wide = paddedLayout([5, classes], 11, 16);
      list.push({ ...plain, dtype, index: 'i32', rows: 7, classes, layout: unaligned });
      list.push({ ...plain, dtype, index: 'i64', rows: 5, classes, layout: wide });
      const counted = { dtype, rows: 9, classes, counts: true };
      list.push({ ...counted, index: 'i64', layout: unaligned, smoothing: 0 });
      list.push({ ...counted, index: 'i32', layout: aligned, smoothing: 0.1 });
    }
    const wide = paddedLayout([3, 50257], 47, 16);
    list.push({ ...plain, dtype, index: 'i64', rows: 0, classes: 17, layout: aligned });
    list.push({ ...plain, dtype, index: 'i64', rows: 3, classes: 50257, layout: wide });
    const wideRows = { dtype, rows: 3, classes: 128256, layout: aligned };
    list.push({ ...wideRows, index: 'i32', smoothing: 0.2, counts: true });
    list.push({ ...wideRows, index: 'i64', smoothing: 1, counts: false });
    list.push({ ...wideRows, index: 'i64', smoothing: 0, counts: false });
    for (const smoothing of [0, 0.3]) {
      for (const [first, classes, all] of [
        [0, 33, 67],
        [33, 34, 67],
        [5, 1, 7],
      ] as const) {
        const part = { first, all };
        const some = { dtype, rows: 9, classes, layout: unaligned, smoothing, part };
        list.push({ ...some, index: 'i64', counts: false });
        list.push({ ...some, index: 'i32', counts: true });
      }
    }
  }
  return list;
}

/** 1 if the target is the first of the largest logits. */
function correctOf(row: Float64Array, target: number): number {
  return Number(target !== IGNORE && row.indexOf(row.reduce((a, b) => max(a, b))) === target);
}

/** A loss and the inputs that its forward and backward share. */
function setupOf(loss: Loss) {
  const { dtype, index, rows, classes, layout, smoothing, counts } = loss;
  const { first, all } = loss.part ?? { first: 0, all: classes };
  const some = loss.part ? { first, classes: all } : { first: 0, classes: 0 };
  const shape = [rows, classes];
  const statistic: DType = dtype === 'f64' ? 'f64' : 'f32';
  const options = `${smoothing > 0 ? ` smoothing ${smoothing}` : ''}${counts ? ' counts' : ''}`;
  const of = loss.part ? ` from ${first} of ${all}` : '';
  const title = `[${shape}]${of} targets ${index} row stride ${layout.strides?.[0] ?? classes}${options}`;
  const args = { smoothing, ignoreIndex: IGNORE, ...some };
  const rowOf = (x: Float64Array, r: number): Float64Array =>
    x.subarray(r * classes, (r + 1) * classes);
  /** Every second target is the largest logit; rows with few distinct logits have several. */
  const targetsOf = (random: Random, logits: Float64Array): number[] =>
    Array.from({ length: rows }, (_, r) => {
      if (r === 1) return IGNORE;
      if (!counts || r % 2 === 1) return random.integer(0, all);
      const row = rowOf(logits, r);
      const largest = row.reduce((a, b) => max(a, b));
      return first + (r % 4 === 0 ? row.indexOf(largest) : row.lastIndexOf(largest));
    });
  const logitsOf = (random: Random): Float64Array =>
    random.normal(rows * classes).map((x) => roundTo(counts ? Math.round(2 * x) : 3 * x, dtype));
  return { ...loss, first, all, shape, statistic, title, args, rowOf, targetsOf, logitsOf };
}

type Setup = ReturnType<typeof setupOf>;

function crossEntropy(setup: Setup): MatrixCase {
  const { dtype, index, rows, layout, smoothing, counts, first, all } = setup;
  const { shape, statistic, title, args, rowOf, targetsOf, logitsOf } = setup;
  // A loss of a hundredth of its two terms has the error of the terms.
  const check = { ...close(statistic), absolute: statistic === 'f64' ? 1e-13 : 1e-5 };
  return opCase({
    op: 'CrossEntropy',
    dtype,
    title,
    build: (random) => {
      const logits = logitsOf(random);
      return {
        operands: {
          logits: input(dtype, shape, logits, layout),
          target: input(index, [rows], targetsOf(random, logits)),
          losses: output(statistic, [rows], check, unaligned),
          lse: output(statistic, [rows], check, unaligned),
          correct: counts ? output('i64', [rows], exact, unaligned) : null,
        },
        args,
        reference: (v) => {
          const targets = Array.from(v.target!, (t) => (t === IGNORE ? t : t - first));
          const row = (r: number): Float64Array => rowOf(v.logits!, r);
          const lse = targets.map((t, r) => (t === IGNORE ? 0 : logSumExp(row(r))));
          return {
            lse,
            correct: targets.map((t, r) => (t in row(r) ? correctOf(row(r), t) : 0)),
            losses: targets.map((t, r) => {
              if (t === IGNORE) return 0;
              const mean = sumOf(row(r)) / all;
              return lse[r]! - (1 - smoothing) * (row(r)[t] ?? 0) - smoothing * mean;
            }),
          };
        },
      };
    },
  });
}

function crossEntropyBackward(setup: Setup, inPlace: boolean): MatrixCase {
  const { dtype, index, rows, classes, layout, smoothing, first, all } = setup;
  const { shape, statistic, title, args, rowOf, targetsOf, logitsOf } = setup;
  return opCase({
    op: 'CrossEntropyBackward',
    dtype,
    title: `${title}${inPlace ? ' in place' : ''}`,
    build(random) {
      const data = logitsOf(random);
      const logits = input(dtype, shape, data, layout);
      const lse = Array.from({ length: rows }, (_, r) => logSumExp(rowOf(data, r)));
      // exp(logit - lse) - 1 near a certain class cancels to the rounding of lse.
      const check = { ...close(dtype), absolute: dtype === 'f64' ? 1e-9 : 1e-6 };
      return {
        operands: {
          logits: inPlace ? inPlaceOperand(logits, check) : logits,
          target: input(index, [rows], targetsOf(random, data)),
          lse: input(statistic, [rows], lse),
          scale: input(statistic, [1], [0.37]),
          dlogits: inPlace ? sameAs(logits, 'logits') : output(dtype, shape, check, layout),
        },
        args,
        reference(v) {
          const gradient = byRow(v.logits!, classes, (row, r) => {
            const t = v.target![r]!;
            if (t === IGNORE) return new Float64Array(classes);
            const even = smoothing / all;
            return row.map((x, i) => {
              const expected = (first + i === t ? 1 - smoothing : 0) + even;
              return (exp(x - v.lse![r]!) - expected) * v.scale![0]!;
            });
          });
          return inPlace ? { logits: gradient } : { dlogits: gradient };
        },
      };
    },
  });
}

/** Counts do not change gradients: without smoothing, such a loss has no separate backward. */
function crossEntropies(): MatrixCase[] {
  return losses()
    .map(setupOf)
    .flatMap((setup) => {
      const forward = crossEntropy(setup);
      if (setup.counts && setup.smoothing === 0) return [forward];
      return [forward, ...[false, true].map((inPlace) => crossEntropyBackward(setup, inPlace))];
    });
}

export const cases: MatrixCase[] = [...softmaxes(), ...crossEntropies()];
