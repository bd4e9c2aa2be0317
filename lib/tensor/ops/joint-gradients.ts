// Linear layers of one input with one gradient of that input: the gradients of their outputs lie
// side by side, and weights that are adjacent in memory are one matrix. One product then computes
// the gradient of the input. A product for each layer would read and write a running sum.

import * as kernels from '../../runtime/kernels.generated.js';
import { leading, required } from '../../runtime/required.js';
import type { View } from '../../runtime/view.js';
import { isBatchInvariant } from '../batch-invariant.js';
import { activeCollector } from '../grad-sink.js';
import { SavedTensor } from '../recompute.js';
import { type GradSink, noGrad, record } from '../tape.js';
import { Tensor } from '../tensor.js';
import { checkLinear, linear } from './linear.js';
import { gemm, gemmRows, plainOperand, transposeOperand } from './matmul.js';
import { type Rotation, ropePositions, rotateHeads } from './rotate-heads.js';
import { asRows, rowCount, toPackedRows, toRowMajor, viewOf, writeTogether } from './shapes.js';
import { swiglu } from './swiglu.js';

let isForced: boolean | null = null;

/** @internal Switches the joint gradients on or off; null: on for 16-bit values on a GPU. */
export function forceJointGradients(on: boolean | null): void {
  isForced = on;
}

/**
 * Returns whether layers with the input x share its gradient. It does not ask whether gradients are
 * recorded, so that the forward of a checkpointed segment calls the same ops as its replay.
 */
export function areGradientsJoint({ device, dtype }: Tensor): boolean {
  return isForced ?? (device.kind === 'cuda' && (dtype === 'bf16' || dtype === 'f16'));
}

/** Gradients of the outputs of layers, side by side. */
interface JointOutputs {
  /** [rows, outputs of all layers] */
  readonly all: Tensor;
  /** The part [rows, outputs] of each layer. */
  readonly parts: readonly View[];
}

/** Allocates the gradients of the outputs of `weights` [outputs, inputs] for `rows` rows. */
function allocateOutputs(weights: readonly Tensor[], rows: number): JointOutputs {
  const [{ dtype, device }, sizes] = [
    required(weights[0]),
    weights.map(({ shape }) => required(shape[0])),
  ];
  const total = sizes.reduce((sum, size) => sum + size, 0);
  const all = Tensor.empty([rows, total], dtype, device);
  let { offset } = all;
  const parts = sizes.map((size) => {
    const part = viewOf(all, [rows, size], [total, 1], offset);
    offset += size;
    return part;
  });
  return { all, parts };
}

/** Returns contiguous weights [outputs, inputs] as one matrix; null if they are not adjacent. */
function joinWeights(weights: readonly Tensor[]): View | null {
  const first = required(weights[0]);
  let [end, rows] = [first.offset, 0];
  for (const weight of weights) {
    if (weight.buffer !== first.buffer || weight.offset !== end || !weight.isContiguous)
      return null;
    end += weight.numel;
    rows += weight.size(0);
  }
  return viewOf(first, [rows, first.size(1)]);
}

/**
 * Writes the gradient of x, input 0 of a node, and of the weights, its inputs from 1 on, from the
 * gradients of the outputs.
 */
function propagate(
  { all, parts }: JointOutputs,
  x: SavedTensor,
  weights: readonly Tensor[],
  sink: GradSink,
): void {
  const isAnyTrained = weights.some((_, i) => sink.needs(i + 1));
  if (isAnyTrained && !activeCollector()) x.begin();
  sink.write(0, (dx, accumulate) => {
    const joined = joinWeights(weights);
    if (joined) {
      gemm(plainOperand(all), plainOperand(joined), asRows(dx), accumulate);
      return;
    }
    for (const [i, weight] of weights.entries()) {
      const dz = required(parts[i]);
      gemm(plainOperand(dz), plainOperand(weight), asRows(dx), accumulate || i > 0);
    }
  });
  sink.markComplete(0);
  const differentiate = (dz: View, dw: View, accumulate: boolean): void =>
    gemm(transposeOperand(plainOperand(dz)), plainOperand(gemmRows(x.value())), dw, accumulate);
  for (let i = 0; i < parts.length; ++i) {
    const dz = required(parts[i]);
    const next = parts[i + 1];
    if (next && isSmall(dz) && isSmall(next) && !activeCollector()) {
      writePair(sink, i + 1, joinColumns(dz, next), differentiate);
      ++i;
    } else {
      sink.writeDeferred(i + 1, [all, x], (dw, accumulate) => differentiate(dz, dw, accumulate));
    }
  }
}

/** Outputs of a layer with a weight gradient of too few tiles for a GPU. */
const SMALL_OUTPUTS = 1024;
const isSmall = (dz: View): boolean => required(dz.shape[1]) <= SMALL_OUTPUTS;

/** Two adjacent parts of JointOutputs: as one view, and each. */
interface Pair {
  readonly both: View;
  readonly each: readonly [View, View];
}

function joinColumns(a: View, b: View): Pair {
  const [rows, columns] = leading(a.shape, 2);
  const both = viewOf(a, [rows, columns + required(b.shape[1])], a.strides, a.offset);
  return { both, each: [a, b] };
}

/** Writes the gradients of inputs i and i + 1: by one product if they are adjacent in memory. */
function writePair(
  sink: GradSink,
  i: number,
  { both, each }: Pair,
  differentiate: (dz: View, dw: View, accumulate: boolean) => void,
): void {
  writeTogether(sink, [i, i + 1], (outs, accumulate) => {
    const [first, second] = outs;
    const joined =
      first && second && accumulate[0] === accumulate[1] ? joinWeights([first, second]) : null;
    if (joined) {
      differentiate(both, joined, accumulate[0] ?? false);
      return;
    }
    for (const [k, out] of outs.entries())
      if (out) differentiate(each[k] as View, out, accumulate[k] ?? false);
  });
}

/** Returns what the backward of layers reads: x if a weight is trained, and the weights. */
const savedOf = (x: SavedTensor, weights: readonly Tensor[]) =>
  weights.some(({ requiresGrad }) => requiresGrad) ? [x, ...weights] : weights;

// Operations: none.

/**
 * Returns silu(x gate^T) * x up^T. x [.., in], weights [out, in]; returns [.., out]. One product
 * gives the gradient of x if the weights are adjacent in memory. Throws as linear() does.
 */
export function gatedProjection(x: Tensor, gateWeight: Tensor, upWeight: Tensor): Tensor {
  const weights = [gateWeight, upWeight];
  const [gate, up, out] = noGrad(() => {
    const [gate, up] = projectBoth(x, gateWeight, upWeight);
    return [gate, up, swiglu(gate, up)] as const;
  });
  const [rows, width] = [rowCount(gate.shape), gate.size(-1)];
  const asMatrix = (of: Tensor): View =>
    viewOf(of, [rows, width], [of.strides[of.ndim - 2] ?? width, 1]);
  const kept = new SavedTensor(x);
  const saved = [...savedOf(kept, weights), gate, up];
  record('gated_projection', [x, ...weights], [out], saved, ([grad], sink) => {
    const outputs = allocateOutputs(weights, rows);
    const [dgate, dup] = outputs.parts;
    kernels.swigluBackward({
      gate: asMatrix(gate),
      up: asMatrix(up),
      dout: asRows(toRowMajor(grad)),
      dgate: required(dgate),
      dup: required(dup),
      accumulateGate: false,
      accumulateUp: false,
    });
    propagate(outputs, kept, weights, sink);
  });
  return out;
}

/** Returns x gate^T and x up^T: by one product, side by side, if the weights are adjacent. */
function projectBoth(x: Tensor, gate: Tensor, up: Tensor): readonly [Tensor, Tensor] {
  const joined = isBatchInvariant() ? null : joinWeights([gate, up]);
  if (!joined || gate.size(1) !== up.size(1)) return [linear(x, gate), linear(x, up)];
  checkLinear('linear', x, gate, null);
  const [width, total] = [gate.size(0), gate.size(0) + up.size(0)];
  const both = Tensor.empty([...x.shape.slice(0, -1), total], x.dtype, x.device);
  const rows = gemmRows(x);
  gemm(plainOperand(rows), transposeOperand(plainOperand(joined)), asRows(both), false);
  return [both.narrow(-1, 0, width), both.narrow(-1, width, total - width)];
}

/** Projections of one input to heads, which `project` computes without recording. */
export interface HeadProjections {
  /** Weights [heads * width, inputs] of queries, keys and values. */
  readonly weights: readonly [Tensor, Tensor, Tensor];
  /** Angles of queries and keys; values are not rotated. */
  readonly rotation: Omit<Rotation, 'inverse'>;
  /** Returns rotated queries, rotated keys, and values, each [B, T, heads, width]. */
  project(): readonly [Tensor, Tensor, Tensor];
}

/**
 * Returns rotated queries, rotated keys, and values of x [B, T, in]. One product gives the gradient
 * of x if the weights are adjacent in memory.
 */
export function rotatedProjections(
  x: Tensor,
  { weights, rotation, project }: HeadProjections,
): readonly [Tensor, Tensor, Tensor] {
  const heads = noGrad(project);
  const shapes = heads.map(({ shape }) => shape);
  const { cos, sin } = rotation;
  const positions = rotation.positions && ropePositions(rotation.positions, x);
  const kept = new SavedTensor(x);
  const angles = positions ? [cos, sin, positions] : [cos, sin];
  const saved = [...savedOf(kept, weights), ...angles];
  record('rotated_projections', [x, ...weights], heads, saved, (grads, sink) => {
    const outputs = allocateOutputs(weights, rowCount(x.shape));
    for (const [i, grad] of grads.entries()) {
      const to = splitHeads(required(outputs.parts[i]), required(shapes[i]));
      if (!grad) kernels.fill({ out: to, value: 0 });
      else if (i === 2) kernels.copy({ in: grad, out: to });
      else rotateHeads(toPackedRows(grad), to, { cos, sin, positions, inverse: true });
    }
    propagate(outputs, kept, weights, sink);
  });
  return heads;
}

/** Returns rows [B * T, heads * width] of any stride as [B, T, heads, width]. */
function splitHeads(rows: View, shape: readonly number[]): View {
  const [, T = 1, , width = 1] = shape;
  const [step = 1] = rows.strides;
  return viewOf(rows, shape, [T * step, step, width, 1]);
}
