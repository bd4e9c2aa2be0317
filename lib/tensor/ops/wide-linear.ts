// Linear layers with f32 weights over bf16 activations, for adapters. An f32 matrix becomes the sum
// of two bf16 matrices: tensor cores multiply them, and no activation is cast to f32.

import { markAmended } from '../../runtime/deferred-calls.js';
import type { Device } from '../../runtime/device.js';
import * as kernels from '../../runtime/kernels.generated.js';
import { leading, required } from '../../runtime/required.js';
import { describe, isContiguous, type View } from '../../runtime/view.js';
import { activeCollector } from '../grad-sink.js';
import { SavedTensor } from '../recompute.js';
import { scope } from '../scope.js';
import { markChanged, record } from '../tape.js';
import { Tensor } from '../tensor.js';
import { gemm, gemmRows, plainOperand, transposeOperand } from './matmul.js';
import { asRows, shapeError, viewOf } from './shapes.js';

/** Ranks must be multiples of this: then each part of a row starts at a multiple of 16 bytes. */
const RANK_MULTIPLE = 8;

/** Returns whether factors of this rank can be split. */
export const splitsRank = (rank: number): boolean => rank % RANK_MULTIPLE === 0;

/** Returns whether wideLinear() and addWideLinearInto() compute this pair of factors for x. */
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
 * Splits an f32 matrix [n, m] into three bf16 parts side by side, [n, 3 m]. Part `low`, 1 or 2, has
 * the low bits. Parts 0 and 3 - `low` both have the high bits.
 */
function splitIntoColumns(matrix: View, device: Device, low: 1 | 2): Tensor {
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

/** Splits an f32 matrix [n, m] into bf16 rows [3 n, m]: twice the high part, then the low part. */
function splitIntoRows(matrix: View, device: Device): Tensor {
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

/** Computes out (+)= a + b. */
const addParts = (a: View, b: View, out: View, accumulate: boolean): void =>
  kernels.binary({ a, b, out, op: 'add', accumulate });

/** Sets out [n, r] (+)= the sum of the two halves of rows [n, 2 r] that `product` writes. */
function addColumnHalves(
  out: View,
  accumulate: boolean,
  device: Device,
  product: (into: Tensor) => void,
): void {
  const [n, r] = leading(out.shape, 2);
  const halves = Tensor.empty([n, 2 * r], 'f32', device);
  product(halves);
  addParts(columnsOf(halves, 0, r), columnsOf(halves, r, r), out, accumulate);
}

/**
 * Returns x W^T in f32, for x [.., in] in bf16 and a contiguous weight [out, in] in f32. The weight
 * counts with 16 bits of mantissa, and sums are f32. Throws DS_SHAPE if the input dims differ.
 */
export function wideLinear(x: Tensor, weight: Tensor): Tensor {
  const [outputs, inputs] = leading(weight.shape, 2);
  if (x.size(-1) !== inputs) throw shapeError('wide_linear', `[.., ${inputs}]`, describe(x));
  const { device } = x;
  const out = Tensor.empty([...x.shape.slice(0, -1), outputs], 'f32', device);
  scope(() => {
    const parts = rowsOf(splitIntoRows(weight, device), outputs, 2 * outputs);
    addColumnHalves(asRows(out), false, device, (both) =>
      gemm(plainOperand(gemmRows(x)), transposeOperand(plainOperand(parts)), both, false),
    );
  });
  const kept = new SavedTensor(x);
  const saved = weight.requiresGrad ? [kept, weight] : [weight];
  record('wide_linear', [x, weight], [out], saved, ([grad], sink) => {
    if (sink.needs(1) && !activeCollector()) kept.begin();
    const parts = (): Tensor => splitIntoColumns(gemmRows(grad), device, 1);
    sink.write(0, (dx, accumulate) =>
      scope(() =>
        gemm(
          plainOperand(parts()),
          plainOperand(splitIntoRows(weight, device)),
          asRows(dx),
          accumulate,
        ),
      ),
    );
    sink.markComplete(0);
    sink.writeDeferred(1, [grad, kept], (dw, accumulate) =>
      scope(() => {
        const both = Tensor.empty([2 * outputs, inputs], 'f32', device);
        const left = columnsOf(parts(), 0, 2 * outputs);
        gemm(
          transposeOperand(plainOperand(left)),
          plainOperand(gemmRows(kept.value())),
          both,
          false,
        );
        addParts(rowsOf(both, 0, outputs), rowsOf(both, outputs, outputs), dw, accumulate);
      }),
    );
  });
  return out;
}

/**
 * Returns sum + x W^T in the memory of `sum`, in bf16, for x [.., in] and a contiguous weight [out,
 * in] in f32. Factors count with 16 bits of mantissa. The sum is rounded once on a CPU; a GPU may
 * round the product first. `sum` as in addLinearInto(). Throws DS_SHAPE if the dims of `sum` or x
 * differ from those of `weight`.
 */
export function addWideLinearInto(sum: Tensor, x: Tensor, weight: Tensor): Tensor {
  const [outputs, inputs] = leading(weight.shape, 2);
  if (x.size(-1) !== inputs || sum.size(-1) !== outputs) {
    const expected = `[.., ${outputs}] and [.., ${inputs}]`;
    throw shapeError('wide_linear_onto', expected, `${describe(sum)} and ${describe(x)}`);
  }
  const { device } = sum;
  const into = asRows(sum);
  markChanged(sum);
  const out = sum.alias(sum.shape, sum.strides);
  markAmended(sum.buffer);
  const ofInput = (value: Tensor): Tensor => splitIntoColumns(gemmRows(value), device, 1);
  const ofWeight = (): Tensor => splitIntoColumns(weight, device, 2);
  scope(() =>
    gemm(plainOperand(ofInput(x)), transposeOperand(plainOperand(ofWeight())), into, true),
  );
  const kept = new SavedTensor(x);
  const saved = weight.requiresGrad ? [kept, weight] : [weight];
  record('wide_linear_onto', [sum, x, weight], [out], saved, ([dz], sink) => {
    sink.addGrad(0, dz);
    const rows = gemmRows(dz);
    sink.write(1, (dx, accumulate) =>
      scope(() =>
        addColumnHalves(asRows(dx), accumulate, device, (both) =>
          gemm(
            plainOperand(rows),
            plainOperand(columnsOf(ofWeight(), inputs, 2 * inputs)),
            both,
            false,
          ),
        ),
      ),
    );
    sink.writeDeferred(2, [dz, kept], (dw, accumulate) =>
      scope(() =>
        addColumnHalves(dw, accumulate, device, (both) => {
          const right = columnsOf(ofInput(kept.value()), 0, 2 * inputs);
          gemm(transposeOperand(plainOperand(gemmRows(dz))), plainOperand(right), both, false);
        }),
      ),
    );
  });
  return out;
}
