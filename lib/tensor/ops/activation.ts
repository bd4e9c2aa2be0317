// Activations with a parameter: leaky ReLU, ELU and softplus. Forward and backward are one kernel
// each.

import { argumentError } from '../../runtime/input-errors.js';
import type { ActivationOp } from '../../runtime/kernels.generated.js';
import * as kernels from '../../runtime/kernels.generated.js';
import { namesOf, readOptions } from '../../runtime/options.js';
import { requireFinite, requireNumber } from '../../runtime/require-number.js';
import { record } from '../tape.js';
import { Tensor } from '../tensor.js';
import { requireTensor } from './shapes.js';

/** Returns op(x) for every element; floating dtypes, any strides. The backward reads x. */
function applyActivation(
  name: string,
  x: Tensor,
  op: ActivationOp,
  alpha: number,
  threshold = 0,
): Tensor {
  requireTensor(name, x);
  const out = Tensor.emptyLike(x);
  const curve = { op, alpha, threshold };
  kernels.activation({ in: x, out, ...curve });
  record(name, [x], [out], [x], ([grad], sink) => {
    sink.write(0, (dx, accumulate) =>
      kernels.activationBackward({ in: x, dout: grad, dx, ...curve, accumulate }),
    );
  });
  return out;
}

/** Options of softplus(). */
export interface SoftplusOptions {
  /** Steepness of the bend. Default: 1. */
  beta?: number;
  /** If beta x is above this, the result is x. Default: 20. */
  threshold?: number;
}

// Operations: functions; methods too.

/**
 * Returns x if it is above 0, else slope x, element by element; floating dtypes. The gradient at 0
 * is the slope, as in PyTorch. Throws DS_DTYPE for other dtypes, DS_ARGUMENT for invalid options.
 * Source: Maas et al. 2013.
 */
export function leakyRelu(x: Tensor, slope = 0.01): Tensor {
  return applyActivation('leakyRelu', x, 'leaky_relu', requireFinite('leakyRelu slope', slope));
}

/**
 * Returns x if it is above 0, else alpha (exp(x) - 1), exact for small x, element by element;
 * floating dtypes. Throws DS_DTYPE for other dtypes, DS_ARGUMENT for invalid options. Source:
 * Clevert et al. 2016.
 */
export function elu(x: Tensor, alpha = 1): Tensor {
  return applyActivation('elu', x, 'elu', requireFinite('elu alpha', alpha));
}

/**
 * Returns log(1 + exp(beta x)) / beta, element by element, without overflow; floating dtypes.
 * Throws DS_DTYPE for other dtypes, DS_ARGUMENT for invalid options. Source:
 * torch.nn.functional.softplus.
 */
export function softplus(x: Tensor, options: SoftplusOptions = {}): Tensor {
  const { beta = 1, threshold = 20 } = readOptions('softplus', options, namesOf.SoftplusOptions);
  requireFinite('softplus beta', beta);
  requireNumber('softplus threshold', threshold);
  if (beta === 0) {
    const expected = 'a beta other than 0, because it is a divisor';
    throw argumentError('softplus', expected, '0');
  }
  return applyActivation('softplus', x, 'softplus', beta, threshold);
}
