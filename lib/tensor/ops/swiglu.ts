// The gate of Llama's feed-forward block as one op: silu(gate) times up, and both gradients in one
// pass.

import * as kernels from '../../runtime/kernels.generated.js';
import { required } from '../../runtime/required.js';
import { describe, type View } from '../../runtime/view.js';
import { type GradSink, record } from '../tape.js';
import { Tensor } from '../tensor.js';
import {
  requireSameType,
  requireTensor,
  sameShape,
  shapeError,
  viewOf,
  writeTogether,
} from './shapes.js';

// Operations: functions.

/**
 * Returns silu(gate) * up element by element, where silu(x) = x / (1 + exp(-x)). Both have one
 * shape and a floating dtype, any strides. A single tensor [.., 2H] has the gate in its first H
 * columns and up in the rest, as one matrix product gives both; the result is [.., H]. f32 inside,
 * rounded once. The backward keeps the operands and no silu(gate). Throws DS_SHAPE, DS_DTYPE or
 * DS_DEVICE if the tensors do not fit together. Source: Shazeer 2020.
 */
export function swiglu(gate: Tensor, up: Tensor | null = null): Tensor {
  return up ? gateTwo(gate, up) : gateHalves(gate);
}

function gateTwo(gate: Tensor, up: Tensor): Tensor {
  requireSameType('swiglu', gate, up);
  if (!sameShape(gate.shape, up.shape)) {
    throw shapeError('swiglu', `up like the gate, ${describe(gate)}`, describe(up));
  }
  const out = Tensor.empty(gate.shape, gate.dtype, gate.device);
  kernels.swiglu({ gate, up, out });
  record('swiglu', [gate, up], [out], [gate, up], ([grad], sink) => {
    const dout = grad;
    writeGateGrads(sink, gate, up, dout);
  });
  return out;
}

/** One kernel writes both gradients; an unneeded one goes to temporary memory. */
function writeGateGrads(sink: GradSink, gate: Tensor, up: Tensor, dout: Tensor): void {
  writeTogether(sink, [0, 1], ([dgate, dup], [accumulateGate = false, accumulateUp = false]) => {
    const temporary = dgate && dup ? null : Tensor.empty(gate.shape, gate.dtype, gate.device);
    kernels.swigluBackward({
      gate,
      up,
      dout,
      dgate: required(dgate ?? temporary),
      dup: required(dup ?? temporary),
      accumulateGate,
      accumulateUp,
    });
    temporary?.dispose();
  });
}

/** Returns the two halves of the last dim as views. */
function halvesOf(x: View): [View, View] {
  const shape = [...x.shape];
  const half = required(shape.pop()) / 2;
  const step = half * required(x.strides[shape.length]);
  shape.push(half);
  return [viewOf(x, shape, x.strides, x.offset), viewOf(x, shape, x.strides, x.offset + step)];
}

function gateHalves(x: Tensor): Tensor {
  requireTensor('swiglu', x);
  const width = x.shape[x.ndim - 1];
  if (width === undefined || width % 2 !== 0) {
    throw shapeError(
      'swiglu',
      'gate and up, or both in one tensor [.., 2H]',
      describe(x),
      'Pass both tensors, or one with an even last dim: the gate first, then up.',
    );
  }
  const [gate, up] = halvesOf(x);
  const out = Tensor.empty(gate.shape, x.dtype, x.device);
  kernels.swiglu({ gate, up, out });
  record('swiglu', [x], [out], [x], ([grad], sink) => {
    sink.write(0, (dx, accumulate) => {
      const [dgate, dup] = halvesOf(dx);
      const [gate, up] = halvesOf(x);
      const [accumulateGate, accumulateUp] = [accumulate, accumulate];
      const dout = grad;
      kernels.swigluBackward({ gate, up, dout, dgate, dup, accumulateGate, accumulateUp });
    });
  });
  return out;
}
