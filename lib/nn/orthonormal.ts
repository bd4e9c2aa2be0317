// Random orthonormal rows or columns: Gaussian numbers, orthogonalized on the host in f64.

import { cpu } from '../runtime/device.js';
import * as kernels from '../runtime/kernels.generated.js';
import { required } from '../runtime/required.js';
import { inOrder, type RandomState, scope, Tensor } from '../tensor/index.js';

/**
 * Subtracts the projections on earlier vectors from vector `at` of length `size`, and scales it to
 * length 1.
 */
function orthogonalise(vectors: Float64Array, size: number, at: number): void {
  const own = vectors.subarray(at * size, (at + 1) * size);
  // One pass leaves a rounding error as large as the subtracted part; two passes suffice (Giraud et
  // al. 2005).
  for (let pass = 0; pass < 2; ++pass) {
    for (let k = 0; k < at; ++k) {
      const other = vectors.subarray(k * size, (k + 1) * size);
      let along = 0;
      for (let i = 0; i < size; ++i) along += required(own[i]) * required(other[i]);
      for (let i = 0; i < size; ++i) own[i] = required(own[i]) - along * required(other[i]);
    }
  }
  let square = 0;
  for (const value of own) square += value * value;
  const scale = 1 / Math.sqrt(square);
  for (let i = 0; i < size; ++i) own[i] = required(own[i]) * scale;
}

/**
 * Returns a row-major matrix [rows, columns] with orthonormal rows, or columns if they are fewer.
 * The matrix depends only on `random` and is uniformly distributed. It is the Q of a QR
 * decomposition with a positive diagonal of R.
 */
export function orthonormalRows(rows: number, columns: number, random: RandomState): Float64Array {
  const isTall = rows > columns;
  const [count, size] = isTall ? [columns, rows] : [rows, columns];
  const vectors = scope(() => {
    const out = Tensor.empty([count * size], 'f32', cpu());
    kernels.randomNormal({ out, mean: 0, stddev: 1, ...random, ...inOrder });
    return Float64Array.from(out.toRaw() as Float32Array);
  });
  for (let at = 0; at < count; ++at) orthogonalise(vectors, size, at);
  if (!isTall) return vectors;
  const turned = new Float64Array(vectors.length);
  for (let r = 0; r < rows; ++r) {
    for (let c = 0; c < columns; ++c) turned[r * columns + c] = required(vectors[c * size + r]);
  }
  return turned;
}
