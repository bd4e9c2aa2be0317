// Categories drawn by their probabilities.

import { isFloating } from '../../runtime/dtype.js';
import * as kernels from '../../runtime/kernels.generated.js';
import { namesOf, readOptions } from '../../runtime/options.js';
import { requireInteger } from '../../runtime/require-number.js';
import { required } from '../../runtime/required.js';
import { describe } from '../../runtime/view.js';
import { nextRandom } from '../random.js';
import { Tensor } from '../tensor.js';
import { requireTensor, shapeError, toRowMajor, viewOf } from './shapes.js';

/** Options of multinomial(). */
export interface MultinomialOptions {
  /** Whether a category may be drawn several times. Default: false. */
  replacement?: boolean;
}

// Operations: random; methods too.

/**
 * Draws `draws` categories of each row of `x`, [C] or [N, C], with probabilities in proportion to
 * its values. Returns i64 of shape [draws] or [N, draws], the same on every device for the same
 * seed(). Values need not sum to 1; fewer than 2^24 categories. Not differentiable. Throws DS_SHAPE
 * or DS_DTYPE if the tensors do not fit together, DS_ARGUMENT for invalid options. On a GPU an
 * invalid row (a negative, infinite or NaN value, or too few values above 0) draws -1. As
 * torch.multinomial.
 */
export function multinomial(x: Tensor, draws: number, options: MultinomialOptions = {}): Tensor {
  requireTensor('multinomial', x);
  requireInteger('multinomial draws', draws, 0);
  const given = readOptions<MultinomialOptions>('multinomial', options, namesOf.MultinomialOptions);
  if ((x.ndim !== 1 && x.ndim !== 2) || !isFloating(x.dtype)) {
    throw shapeError('multinomial', '[C] or [N, C] of a floating dtype', describe(x));
  }
  const rows = x.ndim === 1 ? 1 : required(x.shape[0]);
  const out = Tensor.empty([...x.shape.slice(0, -1), draws], 'i64', x.device);
  const source = toRowMajor(x);
  kernels.multinomial({
    in: viewOf(source, [rows, required(x.shape.at(-1))]),
    index: viewOf(out, [rows, draws]),
    replacement: given.replacement ?? false,
    ...nextRandom(),
  });
  if (source !== x) source.dispose();
  return out;
}
