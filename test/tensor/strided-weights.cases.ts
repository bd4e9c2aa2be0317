// Weights that are views with gaps, transposed ones above all: the same values and gradients as of
// copies.
import assert from 'node:assert/strict';
import { scope, Tensor } from '../../lib/index.js';
import type { Device } from '../../lib/runtime/device.js';
import {
  addLayerNorm,
  addRmsNorm,
  contiguous,
  embedding,
  layerNorm,
  linear,
  linearCrossEntropy,
  linearGelu,
  rmsNorm,
  transpose,
} from '../../lib/tensor/index.js';
import type { Case } from '../support/case.js';
import { random } from '../support/random.js';

type Body = (x: Tensor, weight: Tensor, bias: Tensor, ids: Tensor) => Tensor;

/** Each op of x [64, 64], a matrix [64, 64] or a vector [64] as weight, and a bias [64]. */
const ops: Record<string, Body> = {
  linear: (x, w, b) => linear(x, w, b),
  'linear without bias': (x, w) => linear(x, w),
  linearGelu: (x, w, b) => linearGelu(x, w, b),
  embedding: (_, w, __, ids) => embedding(w, ids),
  linearCrossEntropy: (x, w, _, ids) => linearCrossEntropy(x, w, ids),
  layerNorm: (x, w, b) => layerNorm(x, w.select(1, 2), b),
  addLayerNorm: (x, w, b) => addLayerNorm(x, w, w.select(1, 2), b)[1],
  rmsNorm: (x, _, b) => rmsNorm(x, b),
  addRmsNorm: (x, w, b) => addRmsNorm(x, w, b)[1],
};

function compare(device: Device, body: Body): void {
  scope(() => {
    const values = (shape: number[]) =>
      Tensor.from(Float32Array.from({ length: shape.reduce((a, b) => a * b) }, random), {
        device,
      }).reshape(shape);
    const ids = Tensor.from(
      Int32Array.from({ length: 64 }, (_, i) => (i * 13) % 64),
      { device },
    );
    const leaves = [values([64, 64]), values([64, 64]), values([64, 2])];
    for (const leaf of leaves) leaf.requiresGrad = true;
    const [x, matrix, pairs] = leaves as [Tensor, Tensor, Tensor];
    const run = (view: (t: Tensor) => Tensor) => {
      const out = body(x, view(transpose(matrix, 0, 1)), view(pairs.select(1, 1)), ids);
      out.mul(out).sum().backward();
      const grads = leaves.map((leaf) => Array.from(leaf.grad?.toArray() ?? [], Number));
      for (const leaf of leaves) leaf.grad = null;
      return { out: Array.from(out.toArray(), Number), grads };
    };
    assert.deepEqual(
      run((t) => t),
      run((t) => contiguous(t)),
    );
  });
}

export const cases: readonly Case[] = Object.entries(ops).map(([name, body]) => ({
  name: `strided weights: ${name}`,
  run: (device) => compare(device, body),
}));
