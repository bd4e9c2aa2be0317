// Random selection of tokens: takes them out of their rows and puts them back (random-LTD).
import * as kernels from '../../runtime/kernels.generated.js';
import type { View } from '../../runtime/view.js';
import { mapToWhole, nextRandom } from '../random.js';
import { scope } from '../scope.js';
import { noGrad, record } from '../tape.js';
import { Tensor } from '../tensor.js';
import { arange, to } from './creation.js';
import { add } from './elementwise.js';
import { sliceFor } from './indexing.js';
import { constant, copyRowMajor, expandView, viewOf } from './shapes.js';
import { sort, topk } from './sort.js';
import { narrow, reshape, transpose } from './views.js';

// Operations: none.

/** Rows, tokens to choose per row, and number of draws. */
interface TokenDraw {
  /** Samples of this rank. */
  rows: number;
  /** Tokens of each sample. */
  tokens: number;
  /** Number of independent draws. */
  draws: number;
  /** Tokens of each draw: 1 to `tokens`. */
  chosen: number;
}

/**
 * @internal Draws `chosen` different tokens of each row in ascending order, all sets equally
 * likely, `draws` times: [draws, rows, chosen] i32. As in dropout(), a sample of the global
 * micro-batch has the same tokens on any number of ranks.
 */
export function chooseTokens({ rows, tokens, draws, chosen }: TokenDraw, like: Tensor): Tensor {
  return noGrad(() =>
    scope(() => {
      const keys = Tensor.empty([rows, draws, tokens], 'f32', like.device);
      const { sample, rank, ranks } = mapToWhole({ shape: [rows], numel: rows });
      const ownSample = sample * draws * tokens;
      const part = {
        first: rank * ownSample,
        row: ranks > 1 ? ownSample : 0,
        stride: ranks * ownSample,
      };
      kernels.randomUniform({ out: keys, low: 0, high: 1, ...nextRandom(), ...part });
      const { indices } = topk(keys, chosen);
      return to(transpose(sort(indices).values, 0, 1), 'i32').contiguous();
    }),
  );
}

/**
 * @internal Returns the indices [rows * chosen] of tokens [rows, chosen] among the tokens of all
 * rows.
 */
export function indicesOfTokens(chosen: Tensor, tokens: number): Tensor {
  return noGrad(() =>
    scope(() => {
      const [rows = 0] = chosen.shape;
      const firsts = arange(rows, { dtype: 'i32', device: chosen.device }).mul(tokens);
      return reshape(add(chosen, reshape(firsts, [rows, 1])), [-1]).contiguous();
    }),
  );
}

/** Expands `indices` [n] to [n, width], equal in all columns. */
const repeatOverColumns = (indices: Tensor, width: number): View =>
  expandView(viewOf(indices, [indices.numel, 1]), [indices.numel, width]);

/** @internal Returns the rows of x [N, C] at `indices` [n], all different: [n, C]. */
export function takeRows(x: Tensor, indices: Tensor): Tensor {
  const out = gatherRows(x, indices);
  record('takeRows', [x], [out], [indices], ([grad], sink) => {
    sink.write(0, (dx, accumulate) => {
      const index = repeatOverColumns(indices, x.size(1));
      kernels.scatterAdd({ src: grad, index, out: dx, dim: 0, accumulate });
    });
  });
  return out;
}

/** @internal Returns x [N, C] with `rows` [n, C] at `indices` [n], all different. */
export function replaceRows(x: Tensor, indices: Tensor, rows: Tensor): Tensor {
  const index = repeatOverColumns(indices, x.size(1));
  const store = (into: Tensor, src: View): void =>
    kernels.scatter({ src, index, out: sliceFor('replaceRows', into, 0, index), dim: 0 });
  const out = copyRowMajor(x);
  store(out, rows);
  record('replaceRows', [x, rows], [out], [indices], ([grad], sink) => {
    const g = grad;
    if (sink.needs(0)) {
      const rest = copyRowMajor(g);
      store(rest, expandView(constant(0, g.dtype, g.device), rows.shape));
      sink.addGrad(0, rest);
    }
    if (sink.needs(1)) sink.addGrad(1, gatherRows(g, indices));
  });
  return out;
}

function gatherRows(x: Tensor, indices: Tensor): Tensor {
  const index = repeatOverColumns(indices, x.size(1));
  const out = Tensor.empty(index.shape, x.dtype, x.device);
  kernels.gather({ in: sliceFor('takeRows', x, 0, index), index, out, dim: 0 });
  return out;
}

/** @internal Returns draw `i` of chooseTokens(): [rows, chosen]. */
export const drawOf = (draws: Tensor, i: number): Tensor =>
  noGrad(() => reshape(narrow(draws, 0, i, 1), [draws.size(1), draws.size(2)]));
