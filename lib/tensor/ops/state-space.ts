// The recurrence of state space layers.

import * as kernels from '../../runtime/kernels.generated.js';
import { namesOf, readOptions } from '../../runtime/options.js';
import { leading } from '../../runtime/required.js';
import { describe } from '../../runtime/view.js';
import { refuseBatchInvariant } from '../batch-invariant.js';
import { record } from '../tape.js';
import { Tensor } from '../tensor.js';
import { documentsOf, requireHeadNumbers } from './recurrent-inputs.js';
import { requireSameType, requireTensor, shapeError, toPackedRows, toRowMajor } from './shapes.js';

/** Inputs of stateSpace(). */
export interface StateSpaceInputs {
  /** Values, [B, T, H, P]. */
  readonly x: Tensor;
  /** The direction in which each token writes, [B, T, G, N]; H / G heads share a group. */
  readonly b: Tensor;
  /** The direction in which each token reads, like b. */
  readonly c: Tensor;
  /** Logarithm of the factor of the state, [B, T, H], at most 0; f32, or f64 for f64. */
  readonly decay: Tensor;
  /** Factor of the values, [B, T, H]; f32, or f64 for f64. */
  readonly step: Tensor;
  /** The document of each token, [B, T] i32 or i64. Default: each row is one. */
  readonly documents?: Tensor | null;
}

const OP = 'stateSpace';

/** Inputs in the layouts of the kernels. */
type KernelInputs = Readonly<Record<'c' | 'b' | 'x' | 'decay' | 'step', Tensor>> & {
  readonly documents: Tensor | null;
};

function readInputs(inputs: StateSpaceInputs): KernelInputs {
  const {
    x,
    b,
    c,
    decay,
    step,
    documents = null,
  } = readOptions(OP, inputs, namesOf.StateSpaceInputs);
  for (const tensor of [c, b, x, decay, step]) requireTensor(OP, tensor);
  requireSameType(OP, c, b);
  requireSameType(OP, c, x);
  const [B, T, G = 0] = c.shape;
  const [xB, xT, H = 0] = x.shape;
  const isSame = c.shape.length === 4 && c.shape.every((n, d) => n === b.shape[d]);
  if (!isSame || x.ndim !== 4 || xB !== B || xT !== T || H % G !== 0) {
    const expected = 'b, c [B, T, G, N] and x [B, T, H, P] with H a multiple of G';
    throw shapeError(OP, expected, [b, c, x].map(describe).join(', '));
  }
  requireHeadNumbers(OP, 'decay and step', [decay, step], x);
  return {
    c: toPackedRows(c),
    b: toPackedRows(b),
    x: toPackedRows(x),
    decay: toRowMajor(decay),
    step: toRowMajor(step),
    documents: documentsOf(OP, documents, x),
  };
}

// Operations: functions.

/**
 * Runs the recurrence of a state space layer: linear attention [B, T, H, P] with a state S [N, P]
 * of each head. Each token runs S = exp(decay) S + step b x'; its result is S'c. The state starts
 * as zeros at the first token of each document. f32 inside (f64 for f64). The backward runs the
 * forward again and keeps no states. A GPU supports N and P up to 256. Throws DS_SHAPE, DS_DTYPE or
 * DS_DEVICE if the tensors do not fit together. Source: Dao and Gu 2024 (Mamba-2).
 */
export function stateSpace(inputs: StateSpaceInputs): Tensor {
  const read = readInputs(inputs);
  const { c, b, x, decay, step, documents } = read;
  const out = Tensor.empty(x.shape, x.dtype, x.device);
  refuseBatchInvariant('a sequence', 'attention', 'a recurrent layer');
  kernels.stateSpace({ ...read, out });
  const saved = [c, b, x, decay, step];
  const given = [inputs.c, inputs.b, inputs.x, inputs.decay, inputs.step];
  record(OP, given, [out], documents ? [...saved, documents] : saved, ([grad], sink) => {
    const grads = saved.map(({ shape, dtype, device }) => Tensor.empty(shape, dtype, device));
    const [dc, db, dx, ddecay, dstep] = leading(grads, 5);
    kernels.stateSpaceBackward({ ...read, dout: toPackedRows(grad), dc, db, dx, ddecay, dstep });
    grads.forEach((one, i) => {
      if (sink.needs(i)) sink.addGrad(i, one);
      one.dispose();
    });
  });
  return out;
}
