// Gradients of grouped products by computed weights.
import * as ops from '../../lib/tensor/index.js';
import { type GradientCheck, indices } from './check.js';

export const frozenProducts: GradientCheck[] = [false, true].map((isPlain) => ({
  op: 'groupedFrozen',
  title: isPlain ? 'plain' : 'gathered',
  inputs: [{ shape: [isPlain ? 6 : 3, 4] }],
  run: (x: ops.Tensor) => {
    const groups = ops.groupRows(indices([0, 3, 3, 1, 0, 1], [3, 2], x), 4);
    const stored = ops.linspace(-1, 1, 4 * 5 * 4, { dtype: x.dtype, device: x.device });
    const shape = isPlain ? [4, 4, 5] : [4, 5, 4];
    const values = () => stored.reshape(shape).clone();
    return ops.groupedFrozen(x, { shape, stored, values }, groups, {
      isGathered: !isPlain,
      isPlain,
    });
  },
}));
