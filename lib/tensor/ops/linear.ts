// The linear layer, with and without GELU: a GEMM with a backward that writes three gradients in
// place.

import { markAmended } from '../../runtime/deferred-calls.js';
import * as kernels from '../../runtime/kernels.generated.js';
import { required } from '../../runtime/required.js';
import { contiguousStrides, describe, isContiguous, type View } from '../../runtime/view.js';
import { isBatchInvariant } from '../batch-invariant.js';
import { activeCollector } from '../grad-sink.js';
import { computeProjection } from '../kept-results.js';
import { SavedTensor } from '../recompute.js';
import { type GradSink, markChanged, record } from '../tape.js';
import { Tensor } from '../tensor.js';
import { gemm, gemmRows, plainOperand, transposeOperand } from './matmul.js';
import {
  asRows,
  overwriteOrAdd,
  requireInput,
  requireSameType,
  rowCount,
  shapeError,
  sumToShape,
  toRowMajor,
  viewOf,
} from './shapes.js';
import { contiguous } from './views.js';

/**
 * Throws DS_SHAPE, DS_DTYPE or DS_DEVICE unless x [.., in], weight [out, in] and bias [out] fit
 * together.
 */
export function checkLinear(op: string, x: Tensor, weight: Tensor, bias: Tensor | null): void {
  requireInput(op, x, weight);
  if (bias) requireSameType(op, weight, bias);
  const [outputs, inputs] = weight.shape;
  if (weight.ndim !== 2 || x.ndim < 1 || x.shape[x.ndim - 1] !== inputs) {
    throw shapeError(
      op,
      `[.., ${weight.ndim === 2 ? inputs : 'in'}] and a weight [out, in]`,
      `${describe(x)} and ${describe(weight)}`,
    );
  }
  if (bias && (bias.ndim !== 1 || bias.shape[0] !== outputs)) {
    throw shapeError(op, `a bias [${outputs}]`, describe(bias));
  }
}

/**
 * Returns whether a GEMM cannot read the operands in place: a transposed weight, a bias with gaps.
 */
function needsCopy(weight: Tensor, bias: Tensor | null): boolean {
  const rows = isContiguous(weight) || weight.strides[1] === 1;
  return !rows || (bias !== null && !isContiguous(bias));
}

/** Computes dx = dz W and dW = dz^T x from dz [.., out], for inputs 0 and 1 of the node. */
function linearBackward(dz: Tensor, x: SavedTensor, weight: Tensor, sink: GradSink): void {
  if (sink.needs(1) && !activeCollector()) x.begin();
  const a = gemmRows(dz);
  sink.write(0, (dx, accumulate) =>
    gemm(plainOperand(a), plainOperand(weight), asRows(dx), accumulate),
  );
  sink.markComplete(0);
  weightBackward(dz, x, sink);
}

/** Computes the gradient of the weight, dz^T x. */
function weightBackward(dz: Tensor, x: SavedTensor, sink: GradSink): void {
  sink.writeDeferred(1, [dz, x], (dw, accumulate) =>
    gemm(
      transposeOperand(plainOperand(gemmRows(dz))),
      plainOperand(gemmRows(x.value())),
      dw,
      accumulate,
    ),
  );
}

/**
 * Maps the output of linearGelu to the values before the activation, the second output of its node.
 * A product that reads the output gives its gradient to the second output: its GEMM applies the
 * slope of GELU.
 */
const beforeGelu = new WeakMap<Tensor, Tensor>();

/**
 * Computes the gradients of a linear layer of x = gelu_tanh(z). Input 0 of its node is z, not x,
 * and gets (dz W) gelu'(z). The weight gets dz^T x.
 */
function linearBackwardThroughGelu(
  dz: Tensor,
  { x, z }: { x: SavedTensor; z: Tensor },
  weight: Tensor,
  sink: GradSink,
): void {
  const a = gemmRows(dz);
  sink.write(0, (into, accumulate) =>
    overwriteOrAdd(into, accumulate, (out) =>
      kernels.matmul({
        a,
        b: weight,
        bias: null,
        aux: asRows(z),
        out: asRows(out),
        transA: false,
        transB: false,
        epilogue: 'gelu_grad',
        accumulate: false,
      }),
    ),
  );
  weightBackward(dz, x, sink);
}

/** Returns the shape of a linear layer's output. */
export function outputShape(x: Tensor, weight: Tensor): number[] {
  const shape = x.shape.slice();
  shape[shape.length - 1] = required(weight.shape[0]);
  return shape;
}

// Operations: products.

/**
 * Returns x W^T + b. x [.., in], weight [out, in], bias [out] or null; one dtype, any strides (a
 * transposed weight is copied first). Returns [.., out]. f32 accumulation. Throws DS_SHAPE,
 * DS_DTYPE or DS_DEVICE if the tensors do not fit together.
 */
export function linear(x: Tensor, weight: Tensor, bias: Tensor | null = null): Tensor {
  return linearOfRank(x, weight, bias, true);
}

// Operations: none.

/**
 * Returns linear() without bias and with a row stride that is a multiple of 64 elements: fast for
 * any vocabulary size.
 */
export function linearPadded(x: Tensor, weight: Tensor): Tensor {
  checkLinear('linear', x, weight, null);
  if (needsCopy(weight, null)) return linearPadded(x, contiguous(weight));
  const shape = outputShape(x, weight);
  const columns = required(weight.shape[0]);
  const step = paddedColumns(columns);
  const count = rowCount(shape);
  const memory = Tensor.empty([count * step], x.dtype, x.device);
  const strides = contiguousStrides([...shape.slice(0, -1), step]);
  const out = memory.alias(shape, strides);
  memory.dispose();
  forwardProduct(gemmRows(x), weight, null, viewOf(out, [count, columns], [step, 1]));
  return recordLinear(x, weight, null, out);
}

/**
 * Returns sum + x W^T in the memory of `sum`. `sum` must be contiguous, and no other op may
 * read or save it. The product is added in f32 and rounded once.
 */
export function addLinearInto(sum: Tensor, x: Tensor, weight: Tensor): Tensor {
  checkLinear('linear', x, weight, null);
  const a = gemmRows(x);
  const into = asRows(sum);
  markChanged(sum);
  const out = sum.alias(sum.shape, sum.strides);
  markAmended(sum.buffer);
  gemm(plainOperand(a), transposeOperand(plainOperand(weight)), into, true);
  const kept = new SavedTensor(x);
  const read = weight.requiresGrad ? [kept, weight] : [weight];
  record('linear_onto', [sum, x, weight], [out], read, ([dz], sink) => {
    sink.addGrad(0, dz);
    sink.write(1, (dx, accumulate) =>
      gemm(plainOperand(gemmRows(dz)), plainOperand(weight), asRows(dx), accumulate),
    );
    sink.writeDeferred(2, [dz, kept], (dw, accumulate) =>
      gemm(
        transposeOperand(plainOperand(gemmRows(dz))),
        plainOperand(gemmRows(kept.value())),
        dw,
        accumulate,
      ),
    );
  });
  return out;
}

/** Returns the row stride, a multiple of 64, for rows of `columns` elements. */
export function paddedColumns(columns: number): number {
  return Math.ceil(columns / 64) * 64;
}

/**
 * Returns this rank's term of a linear() whose inputs are split over ranks. One rank adds the bias
 * (`addsBias`); every rank gets the same bias gradient.
 */
export function linearOfRank(
  x: Tensor,
  weight: Tensor,
  bias: Tensor | null,
  addsBias: boolean,
): Tensor {
  checkLinear('linear', x, weight, bias);
  if (needsCopy(weight, bias)) {
    return linearOfRank(x, contiguous(weight), bias && contiguous(bias), addsBias);
  }
  const out = computeProjection('linear', x, {
    allocate: () => Tensor.empty(outputShape(x, weight), x.dtype, x.device),
    compute: (to) => forwardProduct(gemmRows(x), weight, addsBias ? bias : null, asRows(to)),
  });
  return recordLinear(x, weight, bias, out);
}

function forwardProduct(a: View, weight: Tensor, bias: Tensor | null, out: View): void {
  if (isBatchInvariant()) {
    kernels.invariantLinear({ x: a, weight, bias, out });
    return;
  }
  kernels.matmul({
    a,
    b: weight,
    bias,
    aux: null,
    out,
    transA: false,
    transB: true,
    epilogue: 'none',
    accumulate: false,
  });
}

/** Records that `out` is x W^T + b. */
function recordLinear(x: Tensor, weight: Tensor, bias: Tensor | null, out: Tensor): Tensor {
  const z = beforeGelu.get(x) ?? null;
  const from = z ?? x;
  const inputs = bias ? [from, weight, bias] : [from, weight];
  const kept = new SavedTensor(x);
  // Only the gradient of the weight reads x.
  const read = weight.requiresGrad ? [kept, weight] : [weight];
  const saved = z ? [...read, z] : read;
  record('linear', inputs, [out], saved, ([grad], sink) => {
    const dz = grad;
    if (z) linearBackwardThroughGelu(dz, { x: kept, z }, weight, sink);
    else linearBackward(dz, kept, weight, sink);
    if (bias) sink.write(2, (db, accumulate) => sumToShape(gemmRows(dz), db, accumulate));
  });
  return out;
}

/**
 * Returns the gradient of z from the gradient of gelu_tanh(z) and from the direct gradient of z; at
 * least one is not null.
 */
function geluBackward(z: Tensor, grad: Tensor | null, directGrad: Tensor | null): Tensor {
  if (!grad) return toRowMajor(required(directGrad));
  const out = Tensor.emptyLike(z);
  if (directGrad) kernels.copy({ in: directGrad, out });
  const accumulate = directGrad !== null;
  kernels.unaryBackward({ in: z, dout: grad, dx: out, op: 'gelu_tanh', accumulate });
  return out;
}

/**
 * Returns gelu_tanh(x W^T + b) in one GEMM; shapes and errors as in linear. The backward keeps x
 * and the value before the activation.
 */
export function linearGelu(x: Tensor, weight: Tensor, bias: Tensor | null = null): Tensor {
  checkLinear('linear_gelu', x, weight, bias);
  if (needsCopy(weight, bias)) return linearGelu(x, contiguous(weight), bias && contiguous(bias));
  const out = Tensor.empty(outputShape(x, weight), x.dtype, x.device);
  const before = Tensor.emptyLike(out);
  if (isBatchInvariant()) {
    forwardProduct(gemmRows(x), weight, bias, asRows(before));
    kernels.unary({ in: before, out, op: 'gelu_tanh' });
  } else {
    kernels.matmul({
      a: gemmRows(x),
      b: weight,
      bias,
      aux: asRows(before),
      out: asRows(out),
      transA: false,
      transB: true,
      epilogue: 'gelu',
      accumulate: false,
    });
  }
  const inputs = bias ? [x, weight, bias] : [x, weight];
  const kept = new SavedTensor(x);
  const outputs = [out, before];
  const read = weight.requiresGrad ? [kept, weight] : [weight];
  record('linear_gelu', inputs, outputs, [...read, before], ([grad, given], sink) => {
    const dz = geluBackward(before, grad ?? null, given ?? null);
    linearBackward(dz, kept, weight, sink);
    if (bias) sink.write(2, (db, accumulate) => sumToShape(asRows(dz), db, accumulate));
  });
  if (out.gradFn) beforeGelu.set(out, before);
  return out;
}
