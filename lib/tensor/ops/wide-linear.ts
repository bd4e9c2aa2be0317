// Linear layers with f32 weights over bf16 activations, for adapters. An f32 matrix becomes the sum
// of two bf16 matrices: tensor cores multiply them, and no activation is cast to f32.

import { amends } from '../../runtime/deferred-calls.js';
import type { Device } from '../../runtime/device.js';
import * as kernels from '../../runtime/kernels.generated.js';
import { leading, required } from '../../runtime/required.js';
import { describe, isContiguous, type View } from '../../runtime/view.js';
import { lateGradients } from '../grad-sink.js';
import { SavedTensor } from '../recompute.js';
import { scope } from '../scope.js';
import { noteChanged, record } from '../tape.js';
import { Tensor } from '../tensor.js';
import { asIs, flipped, gemm, gemmRows } from './matmul.js';
import { asRows, shapeError, viewOf } from './shapes.js';

/** Of a factor's rank: then each part of a row starts at a multiple of 16 bytes. */
const RANK_MULTIPLE = 8;

/** Returns whether factors of this rank can be split. */
export const splitsRank = (rank: number): boolean => rank % RANK_MULTIPLE === 0;

/** Returns whether wideLinear() and wideLinearOnto() compute this pair of factors for x. */
export function isWide(x: Tensor, down: Tensor, up: Tensor): boolean {
  const areWide = down.dtype === 'f32' && up.dtype === 'f32';
  const areWhole = isContiguous(down) && isContiguous(up);
  return x.dtype === 'bf16' && areWide && areWhole && splitsRank(down.size(0));
}

const columnsOf = (matrix: View, first: number, count: number): View =>
  viewOf(matrix, [required(matrix.shape[0]), count], matrix.strides, matrix.offset + first);

const rowsOf = (matrix: View, first: number, count: number): View => {
  const [row, column] = leading(matrix.strides, 2);
  const shape = [count, required(matrix.shape[1])];
  return viewOf(matrix, shape, [row, column], matrix.offset + first * row);
};

/**
 * The parts of an f32 matrix [n, m] beside each other, [n, 3 m] in bf16: `low` says whether the low
 * part is the second or the third; the two others are the high part.
 */
function partsBeside(matrix: View, device: Device, low: 1 | 2): Tensor {
  const [n, m] = leading(matrix.shape, 2);
  const out = Tensor.empty([n, 3 * m], 'bf16', device);
  kernels.splitBf16({
    in: matrix,
    high: columnsOf(out, 0, m),
    again: columnsOf(out, (3 - low) * m, m),
    low: columnsOf(out, low * m, m),
  });
  return out;
}

/** The parts below each other, [3 n, m]: twice the high part, and the low part. */
function partsBelow(matrix: View, device: Device): Tensor {
  const [n, m] = leading(matrix.shape, 2);
  const out = Tensor.empty([3 * n, m], 'bf16', device);
  kernels.splitBf16({
    in: matrix,
    high: rowsOf(out, 0, n),
    again: rowsOf(out, n, n),
    low: rowsOf(out, 2 * n, n),
  });
  return out;
}

/** out (+)= a + b. */
const addParts = (a: View, b: View, out: View, accumulate: boolean): void =>
  kernels.binary({ a, b, out, op: 'add', accumulate });

/** out [n, r] (+)= the sum of the two halves of rows [n, 2 r] that `product` writes. */
function sumOfColumns(
  out: View,
  accumulate: boolean,
  device: Device,
  product: (into: Tensor) => void,
): void {
  const [n, r] = leading(out.shape, 2);
  const both = Tensor.empty([n, 2 * r], 'f32', device);
  product(both);
  addParts(columnsOf(both, 0, r), columnsOf(both, r, r), out, accumulate);
}

/**
 * x W^T in f32, for x [.., in] in bf16 and a contiguous weight [out, in] in f32. The weight counts
 * with 16 bits of mantissa, and sums are f32. Throws DS_SHAPE.
 */
export function wideLinear(x: Tensor, weight: Tensor): Tensor {
  const [outputs, inputs] = leading(weight.shape, 2);
  if (x.size(-1) !== inputs) throw shapeError('wide_linear', `[.., ${inputs}]`, describe(x));
  const { device } = x;
  const out = Tensor.empty([...x.shape.slice(0, -1), outputs], 'f32', device);
  scope(() => {
    const parts = rowsOf(partsBelow(weight, device), outputs, 2 * outputs);
    sumOfColumns(asRows(out), false, device, (both) =>
      gemm(asIs(gemmRows(x)), flipped(asIs(parts)), both, false),
    );
  });
  const kept = new SavedTensor(x);
  const saved = weight.requiresGrad ? [kept, weight] : [weight];
  record('wide_linear', [x, weight], [out], saved, ([grad], sink) => {
    if (sink.needs(1) && !lateGradients()) kept.begin();
    const parts = (): Tensor => partsBeside(gemmRows(grad), device, 1);
    sink.write(0, (dx, accumulate) =>
      scope(() => gemm(asIs(parts()), asIs(partsBelow(weight, device)), asRows(dx), accumulate)),
    );
    sink.passed(0);
    sink.later(1, [grad, kept], (dw, accumulate) =>
      scope(() => {
        const both = Tensor.empty([2 * outputs, inputs], 'f32', device);
        const left = columnsOf(parts(), 0, 2 * outputs);
        gemm(flipped(asIs(left)), asIs(gemmRows(kept.value())), both, false);
        addParts(rowsOf(both, 0, outputs), rowsOf(both, outputs, outputs), dw, accumulate);
      }),
    );
  });
  return out;
}

/**
 * sum + x W^T, written into the memory of `sum` in bf16, for x [.., in] and a contiguous weight
 * [out, in] in f32. Factors count with 16 bits of mantissa. The sum is rounded once on a CPU; a GPU
 * may round the product first. `sum` as in linearOnto(). Throws DS_SHAPE.
 */
export function wideLinearOnto(sum: Tensor, x: Tensor, weight: Tensor): Tensor {
  const [outputs, inputs] = leading(weight.shape, 2);
  if (x.size(-1) !== inputs || sum.size(-1) !== outputs) {
    const expected = `[.., ${outputs}] and [.., ${inputs}]`;
    throw shapeError('wide_linear_onto', expected, `${describe(sum)} and ${describe(x)}`);
  }
  const { device } = sum;
  const into = asRows(sum);
  noteChanged(sum);
  const out = sum.alias(sum.shape, sum.strides);
  amends(sum.buffer);
  const ofInput = (value: Tensor): Tensor => partsBeside(gemmRows(value), device, 1);
  const ofWeight = (): Tensor => partsBeside(weight, device, 2);
  scope(() => gemm(asIs(ofInput(x)), flipped(asIs(ofWeight())), into, true));
  const kept = new SavedTensor(x);
  const saved = weight.requiresGrad ? [kept, weight] : [weight];
  record('wide_linear_onto', [sum, x, weight], [out], saved, ([dz], sink) => {
    sink.give(0, dz);
    const rows = gemmRows(dz);
    sink.write(1, (dx, accumulate) =>
      scope(() =>
        sumOfColumns(asRows(dx), accumulate, device, (both) =>
          gemm(asIs(rows), asIs(columnsOf(ofWeight(), inputs, 2 * inputs)), both, false),
        ),
      ),
    );
    sink.later(2, [dz, kept], (dw, accumulate) =>
      scope(() =>
        sumOfColumns(dw, accumulate, device, (both) => {
          const right = columnsOf(ofInput(kept.value()), 0, 2 * inputs);
          gemm(flipped(asIs(gemmRows(dz))), asIs(right), both, false);
        }),
      ),
    );
  });
  return out;
}
