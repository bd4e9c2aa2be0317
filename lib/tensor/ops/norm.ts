// LayerNorm and RMSNorm, standalone and fused with the preceding residual addition.

import { statisticOf } from '../../runtime/dtype.js';
import * as kernels from '../../runtime/kernels.generated.js';
import { describe, isContiguous, type View } from '../../runtime/view.js';
import { keptSumOf } from '../kept-results.js';
import { type GradSink, isGradEnabled, noGrad, record } from '../tape.js';
import { Tensor } from '../tensor.js';
import {
  asRows,
  overwriteOrAdd,
  requireInput,
  requireSameType,
  rowCount,
  sameShape,
  shapeError,
  toRowMajor,
  writeTogether,
} from './shapes.js';
import { contiguous } from './views.js';

function checkNorm(op: string, x: Tensor, weight: Tensor, bias: Tensor | null): void {
  requireInput(op, x, weight);
  if (bias) requireSameType(op, weight, bias);
  const size = x.shape[x.ndim - 1];
  if (weight.ndim !== 1 || weight.shape[0] !== size || (bias && bias.shape[0] !== size)) {
    throw shapeError(op, `a weight [${size}] for ${describe(x)}`, describe(weight));
  }
}

function checkResidual(op: string, x: Tensor, residual: Tensor): void {
  requireSameType(op, x, residual);
  if (!sameShape(x.shape, residual.shape)) {
    throw shapeError(op, `a residual like ${describe(x)}`, describe(residual));
  }
}

/** Memory for the sum of a norm, and a function to call after the kernel is enqueued. */
interface SumMemory {
  readonly sum: Tensor;
  readonly onWritten: () => void;
}

let sumMemory: SumMemory | null = null;

/** Returns the memory of writeSumInto() if it fits; only the first norm receives it. */
function takeSumMemory(like: Tensor): SumMemory | null {
  const given = sumMemory;
  if (!given || isGradEnabled() || given.sum.dtype !== like.dtype) return null;
  if (!sameShape(given.sum.shape, like.shape)) return null;
  sumMemory = null;
  return given;
}

/**
 * Runs `body` without recording. Its first addLayerNorm() of this shape writes its sum to `sum`,
 * contiguous, then calls `onWritten`.
 */
export function writeSumInto<T>(sum: Tensor, onWritten: () => void, body: () => T): T {
  const outer = sumMemory;
  sumMemory = { sum, onWritten };
  try {
    return noGrad(body);
  } finally {
    sumMemory = outer;
  }
}

/** State of the normalization of rows `s` for its backward. `mean` is null for RMSNorm. */
interface NormState {
  s: Tensor;
  weight: Tensor;
  mean: Tensor | null;
  rstd: Tensor;
}

interface NormGrads {
  dx: View | null;
  dweight: View | null;
  dbias: View | null;
  accumulate: boolean;
}

function normBackward(saved: NormState, dout: View, dsum: View | null, to: NormGrads): void {
  const { s, weight, mean, rstd } = saved;
  const { dx, dweight, dbias, accumulate } = to;
  const rows = asRows(s);
  if (!mean) {
    kernels.rmsNormBackward({ s: rows, weight, rstd, dout, dsum, dx, dweight, accumulate });
    return;
  }
  kernels.layerNormBackward({
    s: rows,
    weight,
    mean,
    rstd,
    dout,
    dsum,
    dx,
    dweight,
    dbias,
    accumulate,
  });
}

/**
 * Lets `write` compute the gradients of the parameters, inputs `first` and `first + 1`, and in the
 * same pass dx.
 */
function writeParameterGrads(
  sink: GradSink,
  first: number,
  hasBias: boolean,
  write: (dweight: View | null, dbias: View | null, accumulate: boolean) => void,
): void {
  const inputs = hasBias ? [first, first + 1] : [first];
  writeTogether(
    sink,
    inputs,
    ([dweight = null, dbias = null], [addWeight = false, addBias = false]) => {
      if (!dweight || !dbias || addWeight === addBias) {
        write(dweight, dbias, dweight ? addWeight : addBias);
        return;
      }
      overwriteOrAdd(addWeight ? dweight : dbias, true, (fresh) =>
        write(addWeight ? fresh : dweight, addWeight ? dbias : fresh, false),
      );
    },
  );
}

/**
 * Records a norm. Input 0 has the gradient dx; the parameters' gradients come from
 * writeParameterGrads().
 */
function recordNorm(
  op: string,
  inputs: Tensor[],
  out: Tensor,
  saved: NormState,
  hasBias: boolean,
): void {
  const { s, weight, mean, rstd } = saved;
  const keep = mean ? [s, weight, mean, rstd] : [s, weight, rstd];
  record(op, inputs, [out], keep, ([grad], sink) => {
    const dout = asRows(toRowMajor(grad));
    writeParameterGrads(sink, 1, hasBias, (dweight, dbias, accumulate) => {
      if (!sink.needs(0)) {
        normBackward(saved, dout, null, { dx: null, dweight, dbias, accumulate });
      }
      sink.write(0, (into, adding) => {
        const dx = asRows(into);
        normBackward(saved, dout, adding ? dx : null, { dx, dweight, dbias, accumulate });
      });
    });
  });
}

/**
 * Records a norm of a sum. dx is the gradient of both x and residual (inputs 0 and 1), and is
 * written over dsum if possible.
 */
function recordAddNorm(
  op: string,
  inputs: Tensor[],
  outs: [Tensor, Tensor],
  saved: NormState,
  hasBias: boolean,
): void {
  const { s, weight, mean, rstd } = saved;
  const keep = mean ? [s, weight, mean, rstd] : [s, weight, rstd];
  record(op, inputs, outs, keep, ([dsum = null, grad = null], sink) => {
    let dx = dsum;
    if (grad) {
      const dout = asRows(toRowMajor(grad));
      const contiguousDsum = dsum && toRowMajor(dsum);
      const wantsInput = sink.needs(0) || sink.needs(1);
      dx = wantsInput
        ? contiguousDsum && (contiguousDsum !== dsum || contiguousDsum.isExclusive)
          ? contiguousDsum
          : Tensor.emptyLike(s)
        : null;
      writeParameterGrads(sink, 2, hasBias, (dweight, dbias, accumulate) =>
        normBackward(saved, dout, contiguousDsum && asRows(contiguousDsum), {
          dx: dx && asRows(dx),
          dweight,
          dbias,
          accumulate,
        }),
      );
    }
    if (!dx) return;
    sink.addGrad(0, dx);
    sink.addGrad(1, dx);
  });
}

function needsCopy(weight: Tensor, bias: Tensor | null): boolean {
  return !isContiguous(weight) || (bias !== null && !isContiguous(bias));
}

/**
 * Returns (x - mean) / sqrt(var + eps) * weight + bias over the last dim. x [.., C], weight and
 * bias [C] of x's dtype; statistics in f32. Throws DS_SHAPE, DS_DTYPE or DS_DEVICE if the tensors
 * do not fit together. Source: Ba et al. 2016.
 */
export function layerNorm(
  x: Tensor,
  weight: Tensor,
  bias: Tensor | null = null,
  eps = 1e-5,
): Tensor {
  checkNorm('layer_norm', x, weight, bias);
  if (needsCopy(weight, bias))
    return layerNorm(x, contiguous(weight), bias && contiguous(bias), eps);
  const source = contiguous(x);
  const out = Tensor.emptyLike(source);
  const shape = [rowCount(x.shape)];
  const mean = Tensor.empty(shape, statisticOf(x.dtype), x.device);
  const rstd = Tensor.emptyLike(mean);
  kernels.layerNorm({
    x: asRows(source),
    residual: null,
    weight,
    bias,
    sum: null,
    out: asRows(out),
    mean,
    rstd,
    eps,
  });
  const inputs = bias ? [source, weight, bias] : [source, weight];
  recordNorm('layer_norm', inputs, out, { s: source, weight, mean, rstd }, bias !== null);
  return out;
}

/** Returns [s, layerNorm(s)] with s = x + residual rounded once, in one pass; see layerNorm. */
export function addLayerNorm(
  x: Tensor,
  residual: Tensor,
  weight: Tensor,
  bias: Tensor | null = null,
  eps = 1e-5,
): [Tensor, Tensor] {
  checkNorm('add_layer_norm', x, weight, bias);
  if (needsCopy(weight, bias))
    return addLayerNorm(x, residual, contiguous(weight), bias && contiguous(bias), eps);
  checkResidual('add_layer_norm', x, residual);
  const [left, right] = [contiguous(x), contiguous(residual)];
  const given = takeSumMemory(left);
  const { kept, keep } = keptSumOf('add_layer_norm', residual);
  const sum = kept ?? given?.sum ?? Tensor.emptyLike(left);
  const out = Tensor.emptyLike(left);
  const mean = Tensor.empty([rowCount(x.shape)], statisticOf(x.dtype), x.device);
  const rstd = Tensor.emptyLike(mean);
  kernels.layerNorm({
    x: asRows(kept ?? left),
    residual: kept ? null : asRows(right),
    weight,
    bias,
    sum: kept ? null : asRows(sum),
    out: asRows(out),
    mean,
    rstd,
    eps,
  });
  keep(sum);
  given?.onWritten();
  const inputs = bias ? [left, right, weight, bias] : [left, right, weight];
  recordAddNorm(
    'add_layer_norm',
    inputs,
    [sum, out],
    { s: sum, weight, mean, rstd },
    bias !== null,
  );
  return [sum, out];
}

/** Returns x / sqrt(mean(x^2) + eps) * weight over the last dim. Source: Zhang & Sennrich 2019. */
export function rmsNorm(x: Tensor, weight: Tensor, eps = 1e-5): Tensor {
  checkNorm('rms_norm', x, weight, null);
  if (!isContiguous(weight)) return rmsNorm(x, contiguous(weight), eps);
  const source = contiguous(x);
  const out = Tensor.emptyLike(source);
  const rstd = Tensor.empty([rowCount(x.shape)], statisticOf(x.dtype), x.device);
  kernels.rmsNorm({
    x: asRows(source),
    residual: null,
    weight,
    sum: null,
    out: asRows(out),
    rstd,
    eps,
  });
  recordNorm('rms_norm', [source, weight], out, { s: source, weight, mean: null, rstd }, false);
  return out;
}

/** Returns [s, rmsNorm(s)] with s = x + residual rounded once, in one pass. */
export function addRmsNorm(
  x: Tensor,
  residual: Tensor,
  weight: Tensor,
  eps = 1e-5,
): [Tensor, Tensor] {
  checkNorm('add_rms_norm', x, weight, null);
  if (!isContiguous(weight)) return addRmsNorm(x, residual, contiguous(weight), eps);
  checkResidual('add_rms_norm', x, residual);
  const [left, right] = [contiguous(x), contiguous(residual)];
  const sum = Tensor.emptyLike(left);
  const out = Tensor.emptyLike(left);
  const rstd = Tensor.empty([rowCount(x.shape)], statisticOf(x.dtype), x.device);
  kernels.rmsNorm({
    x: asRows(left),
    residual: asRows(right),
    weight,
    sum: asRows(sum),
    out: asRows(out),
    rstd,
    eps,
  });
  const saved = { s: sum, weight, mean: null, rstd };
  recordAddNorm('add_rms_norm', [left, right, weight], [sum, out], saved, false);
  return [sum, out];
}
