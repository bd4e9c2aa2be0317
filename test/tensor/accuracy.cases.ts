// Tests the accuracy of sums, norms and logarithms against f64, for rounding errors that are equal,
// accumulate, or belong to large values.
import assert from 'node:assert/strict';
import { scope, Tensor } from '../../lib/index.js';
import type { Device } from '../../lib/runtime/device.js';
import { layerNorm } from '../../lib/tensor/index.js';
import type { Case } from '../support/case.js';

const { abs, fround, max, sqrt } = Math;
const EPS = 1e-5;

/** In a row of equal values, only the rounding error of the mean remains, times 1 / sqrt(eps). */
function constantRows(device: Device): void {
  for (const value of [1000.1, -3.7e-3, 0.1, 65_537.3]) {
    for (const width of [1, 7, 768, 1600, 1601, 5003]) {
      scope(() => {
        const row = new Float32Array(3 * width).fill(value);
        const x = Tensor.from(row, { device }).reshape([3, width]);
        const tensor = Tensor.from(new Float32Array(width).fill(1), { device });
        const zero = Tensor.from(new Float32Array(width), { device });
        const worst = max(
          ...Array.from(layerNorm(x, tensor, zero, EPS).toArray(), (y) => abs(Number(y))),
        );
        const ulp = 2 ** -23 * abs(fround(value));
        assert.ok(worst <= (0.5 * ulp) / sqrt(EPS), `${value} x ${width}: ${worst}`);
      });
    }
  }
}

/** A mean that is large compared with the deviations. */
function shiftedRows(device: Device): void {
  for (const width of [768, 1600, 5003]) {
    scope(() => {
      const row = Float32Array.from({ length: width }, (_, j) => 1000 + ((j * 7919) % 101) / 101);
      const mean = row.reduce((a, b) => a + b, 0) / width;
      const deviation = sqrt(row.reduce((a, b) => a + (b - mean) ** 2, 0) / width + EPS);
      const x = Tensor.from(row, { device }).reshape([1, width]);
      const tensor = Tensor.from(new Float32Array(width).fill(1), { device });
      const zero = Tensor.from(new Float32Array(width), { device });
      const got = layerNorm(x, tensor, zero, EPS).toArray();
      // The stored mean is rounded to f32: half an ulp of 1000, over the deviation.
      const limit = 2 ** -14 / deviation + 4e-6;
      row.forEach((value, j) => {
        const error = abs(Number(got[j]) - (value - mean) / deviation);
        assert.ok(error <= limit, `width ${width}, element ${j}: off by ${error}`);
      });
    });
  }
}

function equalValues(device: Device): void {
  // The CPU adds in f64; a GPU adds a few dozen partial sums in f32.
  const limit = device.kind === 'cpu' ? 2e-7 : 1e-6;
  const shapes: readonly (readonly [number, number])[] = [
    [1, 1_000_001],
    [3, 200_003],
    [100, 4001],
  ];
  for (const value of [0.1, 1000.1]) {
    for (const [rows, columns] of shapes) {
      for (const dim of [0, 1]) {
        scope(() => {
          const shape = dim === 1 ? [rows, columns] : [columns, rows];
          const x = Tensor.from(new Float32Array(rows * columns).fill(value), { device });
          const got = x.reshape(shape).sum({ dims: dim }).toArray();
          const exact = fround(value) * columns;
          for (const sum of got) {
            const off = abs(Number(sum) / exact - 1);
            assert.ok(off <= limit, `${rows} sums of ${columns} x ${value}: off by ${off}`);
          }
        });
      }
    }
  }
}

function sumsOfNoNumber(device: Device): void {
  for (const [values, expected] of [
    [[1, Infinity, 2], Infinity],
    [[-Infinity, 1], -Infinity],
    [[Infinity, -Infinity], Number.NaN],
    [[1, Number.NaN], Number.NaN],
    [[3e38, 3e38], Infinity],
  ] as const) {
    scope(() => {
      const long = Float32Array.from({ length: 50_000 }, (_, i) => values[i] ?? 0);
      assert.deepEqual(Number(Tensor.from(long, { device }).sum().toArray()[0]), expected);
    });
  }
}

/** A large tensor of bytes or bools is summed without a copy in i64, over any of its dims. */
function manyBytes(device: Device): void {
  const [rows, columns] = [3, 2 ** 20 + 5];
  const bytes = Uint8Array.from({ length: rows * columns }, (_, i) => (i * 37) % 251);
  const sumOf = (part: Uint8Array): number => part.reduce((sum, byte) => sum + byte, 0);
  const byRow = [0, 1, 2].map((row) => sumOf(bytes.subarray(row * columns, (row + 1) * columns)));
  scope(() => {
    const x = Tensor.from(bytes, { shape: [rows, columns], device });
    const before = device.memory.inUse;
    device.resetPeaks();
    const all = x.sum().item();
    const rest = x.ne(0).sum().item();
    const copies = device.memory.peakInUse - before;
    assert.ok(copies < 7 * bytes.length, `${copies} bytes for a sum of ${bytes.length}`);
    assert.equal(Number(all), sumOf(bytes));
    assert.equal(Number(rest), bytes.filter((byte) => byte !== 0).length);
    assert.deepEqual(Array.from(x.sum({ dims: 1 }).toArray(), Number), byRow);
    assert.deepEqual(x.sum({ dims: 1, keepDim: true }).shape, [rows, 1]);
    const sums = x.transpose(0, 1).sum({ dims: -1 });
    for (const i of [0, 1, columns / 3 + 1, columns - 1].map(Math.floor)) {
      const column = [0, 1, 2].map((row) => bytes[row * columns + i] as number);
      assert.equal(Number(sums.narrow(0, i, 1).item()), sumOf(Uint8Array.from(column)));
    }
  });
}

/** Log-probabilities depend only on score differences, for scores of any size. */
function largeScores(device: Device): void {
  const steps = Array.from({ length: 50 }, (_, j) => (j * 7919) % 9);
  for (const [unit, offset] of [
    [1 / 16, 0],
    [1 / 16, 1e4],
    [1 / 16, -1e5],
    [0, 1e30],
  ] as const) {
    scope(() => {
      const x = Tensor.from(
        Float32Array.from(steps, (step) => offset + unit * step),
        { device },
      );
      const all = Math.log(steps.reduce((sum, step) => sum + Math.exp(unit * step), 0));
      x.logSoftmax(0)
        .toArray()
        .forEach((got, j) => {
          const off = abs(Number(got) - (unit * (steps[j] as number) - all));
          assert.ok(off <= 2e-6, `${offset} and ${steps[j]} times ${unit}: off by ${off}`);
        });
    });
  }
}

export const cases: readonly Case[] = [
  { name: 'accuracy: layer norm of rows of equal values', run: constantRows },
  { name: 'accuracy: layer norm of rows far from zero', run: shiftedRows },
  { name: 'accuracy: sums of equal values', run: equalValues },
  { name: 'accuracy: sums of many bytes', run: manyBytes },
  { name: 'accuracy: sums of infinities and NaN', run: sumsOfNoNumber },
  { name: 'accuracy: logarithms of probabilities of large scores', run: largeScores },
];
