// The gated delta rule, and the short causal convolution before it.

import { statisticOf } from '../../runtime/dtype.js';
import * as kernels from '../../runtime/kernels.generated.js';
import { namesOf, readOptions } from '../../runtime/options.js';
import { leading } from '../../runtime/required.js';
import { describe } from '../../runtime/view.js';
import { refuseBatchInvariant } from '../batch-invariant.js';
import { type GradSink, record } from '../tape.js';
import { Tensor } from '../tensor.js';
import { cast } from './creation.js';
import { documentsOf, requireHeadNumbers } from './recurrent-inputs.js';
import { requireSameType, requireTensor, shapeError, toPackedRows, toRowMajor } from './shapes.js';

/** Inputs of gatedDelta(). */
export interface DeltaInputs {
  /** Queries, [B, T, Hk, D]. */
  readonly q: Tensor;
  /** Keys, like q. The state stays bounded if their length is at most 1. */
  readonly k: Tensor;
  /** Values, [B, T, H, E]; H / Hk value heads share a key head. */
  readonly v: Tensor;
  /** Logarithm of the factor of the state, [B, T, H], at most 0; f32, or f64 for f64. */
  readonly decay: Tensor;
  /** The step of the update, [B, T, H], in [0, 1]; f32, or f64 for f64. */
  readonly beta: Tensor;
  /** The document of each token, [B, T] i32 or i64. Default: each row is one. */
  readonly documents?: Tensor | null;
}

const DELTA = 'gatedDelta';

/** Inputs in the layouts of the kernels. */
type KernelInputs = Readonly<Record<'q' | 'k' | 'v' | 'decay' | 'beta', Tensor>> & {
  readonly documents: Tensor | null;
};

function readDelta(inputs: DeltaInputs): KernelInputs {
  const {
    q,
    k,
    v,
    decay,
    beta,
    documents = null,
  } = readOptions(DELTA, inputs, namesOf.DeltaInputs);
  for (const tensor of [q, k, v, decay, beta]) requireTensor(DELTA, tensor);
  requireSameType(DELTA, q, k);
  requireSameType(DELTA, q, v);
  const [B, T, Hk = 0] = q.shape;
  const [vB, vT, H = 0] = v.shape;
  const isSame = q.shape.length === 4 && q.shape.every((n, d) => n === k.shape[d]);
  if (!isSame || v.ndim !== 4 || vB !== B || vT !== T || H % Hk !== 0) {
    const expected = 'q, k [B, T, Hk, D] and v [B, T, H, E] with H a multiple of Hk';
    throw shapeError(DELTA, expected, [q, k, v].map(describe).join(', '));
  }
  requireHeadNumbers(DELTA, 'decay and beta', [decay, beta], v);
  return {
    q: toPackedRows(q),
    k: toPackedRows(k),
    v: toPackedRows(v),
    decay: toRowMajor(decay),
    beta: toRowMajor(beta),
    documents: documentsOf(DELTA, documents, q),
  };
}

function addDeltaGrads(read: KernelInputs, grad: Tensor, sink: GradSink): void {
  const allocateLike = ({ shape, dtype, device }: Tensor): Tensor =>
    Tensor.empty(shape, dtype, device);
  const { q, k, v, decay, beta } = read;
  const grads = [q, k, v, decay, beta].map(allocateLike);
  const [dq, dk, dv, ddecay, dbeta] = leading(grads, 5);
  kernels.gatedDeltaBackward({ ...read, dout: toPackedRows(grad), dq, dk, dv, ddecay, dbeta });
  grads.forEach((grad, i) => {
    if (sink.needs(i)) sink.addGrad(i, grad);
    grad.dispose();
  });
}

// Operations: functions.

/**
 * Applies the gated delta rule: linear attention [B, T, H, E] with a state S [D, E] of each value
 * head. Each token runs S = exp(decay) S; u = beta (v - S'k); S = S + k u'; its result is S'q. The
 * state starts as zeros at the first token of each document. f32 inside (f64 for f64). The backward
 * runs the forward again and keeps no states. A GPU supports D and E up to 256. Throws DS_SHAPE,
 * DS_DTYPE or DS_DEVICE if the tensors do not fit together. Source: Yang, Kautz and Hatamizadeh
 * 2025.
 */
export function gatedDelta(inputs: DeltaInputs): Tensor {
  const read = readDelta(inputs);
  const { q, k, v, decay, beta, documents } = read;
  const out = Tensor.empty(v.shape, v.dtype, v.device);
  refuseBatchInvariant('a sequence', 'attention', 'a recurrent layer');
  kernels.gatedDelta({ ...read, out });
  const saved = [q, k, v, decay, beta];
  const inputTensors = [inputs.q, inputs.k, inputs.v, inputs.decay, inputs.beta];
  record(DELTA, inputTensors, [out], documents ? [...saved, documents] : saved, ([grad], sink) => {
    addDeltaGrads(read, grad, sink);
  });
  return out;
}

const CONV = 'shortConv';

/**
 * Returns silu(causal convolution + bias) of each channel of x [B, T, C] with its own weights
 * [C, K], K from 1 to 8; the last weight is that of the token itself. The bias is [C], or null for
 * none. Earlier tokens outside the token's document count as zeros; documents [B, T] i32 or i64, or
 * null. f32 inside (f64 for f64). Throws DS_SHAPE, DS_DTYPE or DS_DEVICE if the tensors do not fit
 * together.
 */
export function shortConv(
  x: Tensor,
  weight: Tensor,
  documents: Tensor | null = null,
  bias: Tensor | null = null,
): Tensor {
  for (const tensor of bias ? [weight, bias] : [weight]) requireSameType(CONV, x, tensor);
  const [C, K = 0] = weight.shape;
  const isFitting = !bias || (bias.ndim === 1 && bias.size(0) === C);
  if (x.ndim !== 3 || weight.ndim !== 2 || x.size(2) !== C || K < 1 || K > 8 || !isFitting) {
    const expected = 'x [B, T, C], weights [C, K] with K from 1 to 8, and a bias [C] or null';
    throw shapeError(
      CONV,
      expected,
      [x, weight, bias].map((one) => one && describe(one)).join(', '),
    );
  }
  const read = {
    x: toPackedRows(x),
    weight: toRowMajor(weight),
    bias: bias && toRowMajor(bias),
    documents: documentsOf(CONV, documents, x),
  };
  const out = Tensor.empty(x.shape, x.dtype, x.device);
  kernels.shortConv({ ...read, out });
  const saved = Object.values(read).filter((tensor) => tensor !== null);
  const inputs = bias ? [x, weight, bias] : [x, weight];
  record(CONV, inputs, [out], saved, ([grad], sink) => {
    const statistic = statisticOf(x.dtype);
    const dx = Tensor.empty(x.shape, x.dtype, x.device);
    const dweight = Tensor.empty(weight.shape, statistic, x.device);
    const dbias = bias && Tensor.empty(bias.shape, statistic, x.device);
    kernels.shortConvBackward({ ...read, dout: toPackedRows(grad), dx, dweight, dbias });
    if (sink.needs(0)) sink.addGrad(0, dx);
    if (sink.needs(1)) sink.addGrad(1, cast(dweight, weight.dtype));
    if (dbias && sink.needs(2)) sink.addGrad(2, cast(dbias, x.dtype));
    for (const tensor of [dx, dweight, dbias]) tensor?.dispose();
  });
  return out;
}
