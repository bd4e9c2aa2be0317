// Wraps blocks as pipeline layers. They pass on the residual stream and the last branch, which is
// not added yet.
import type { Values } from '../pipe/index.js';
import { checkpoint, Tensor } from '../tensor/index.js';

type Through = (branch: Tensor, residual: Tensor | null) => [Tensor, Tensor | null];

/** The branch, and the residual stream before the addition; null without a stream. */
export function flattenStream(values: Values): [branch: Tensor, residual: Tensor | null] {
  if (values instanceof Tensor) return [values, null];
  const [branch, residual = null] = values as [Tensor, Tensor?];
  return [branch, residual];
}

/** A block's forward on a stream; with `keepsInputsOnly`, its activations are recomputed. */
export function streaming(through: Through, keepsInputsOnly: boolean): (values: Values) => Values {
  return (values) => {
    const [branch, residual] = flattenStream(values);
    const body = (x: Tensor, stream: Tensor | null): Tensor[] =>
      through(x, stream).filter((item) => item !== null);
    if (!keepsInputsOnly) return body(branch, residual);
    return checkpoint(body, branch, residual);
  };
}
