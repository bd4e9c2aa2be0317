// Dropout. Its mask is a function of the generator's state and is never stored.

import { valueError } from '../../runtime/input-errors.js';
import * as kernels from '../../runtime/kernels.generated.js';
import { refuseBatchInvariant } from '../batch-invariant.js';
import { type DimShare, mapToWhole, nextRandom } from '../random.js';
import { record } from '../tape.js';
import { Tensor } from '../tensor.js';
import { requireTensor, toRowMajor } from './shapes.js';
import { contiguous } from './views.js';

// Operations: random.

/**
 * Zeroes elements with probability `p` and scales the rest by 1 / (1 - p); returns x if p is 0. The
 * backward draws the same mask again. In an engine's forward over several ranks the mask follows
 * the sample of the global micro-batch, if dim 0 of x is that of the inputs or a multiple of it.
 * Throws DS_ARGUMENT unless `p` is at least 0 and below 1. Source: Srivastava et al. 2014.
 */
export function dropout(x: Tensor, p: number): Tensor {
  return recordDropout(x, p, null);
}

// Operations: none.

/**
 * @internal Returns uniform numbers in [-bound, bound) like x. An element gets the number that it
 * would get on one rank: by sample and token, as in dropout.
 */
export function noiseLike(x: Tensor, bound: number): Tensor {
  const out = Tensor.emptyLike(x);
  const { sample, rank, ranks, ...part } = mapToWhole(out);
  // Sample i of the global micro-batch is on rank i % ranks. A row is this rank's part of a sample.
  const { first, row, stride } = part;
  const allRanks = { first: rank * sample + first, row: row || sample, stride: ranks * sample };
  const mapping = ranks === 1 ? { first, row, stride } : allRanks;
  kernels.randomUniform({ out, low: -bound, high: bound, ...nextRandom(), ...mapping });
  return out;
}

/**
 * @internal Returns dropout() of x [.., C], this rank's share of the channels. Each channel drops
 * the elements that it would drop on one rank.
 */
export function dropoutOfChannels(x: Tensor, p: number, channels: DimShare): Tensor {
  return recordDropout(x, p, channels);
}

function recordDropout(x: Tensor, p: number, channels: DimShare | null): Tensor {
  requireTensor('dropout', x);
  if (p === 0) return x;
  if (!(p > 0 && p < 1)) {
    throw valueError('dropout', 'p in [0, 1)', p);
  }
  refuseBatchInvariant('dropout', 'p = 0', `p = ${p}`);
  const [state, mapping] = [nextRandom(), mapToWhole(x, channels)];
  const drop = (from: Tensor, to: Tensor, accumulate: boolean): void => {
    const { seed, offset } = state;
    const { sample, rank, ranks, first, row, stride } = mapping;
    kernels.dropout({
      in: from,
      out: to,
      p,
      seed,
      offset,
      sample,
      rank,
      ranks,
      first,
      row,
      stride,
      accumulate,
    });
  };
  const source = contiguous(x);
  const out = Tensor.emptyLike(source);
  drop(source, out, false);
  record('dropout', [source], [out], [], ([grad], sink) => {
    const dout = toRowMajor(grad);
    sink.write(0, (dx, accumulate) => drop(dout, dx, accumulate));
  });
  return out;
}
