// Gradients of matrix products, lookups, normalisation, attention and checkpointing.
import * as ops from '../../lib/tensor/index.js';
import { type GradientCheck, gradientCases, type Input, indices } from './check.js';
import { frozenProducts } from './frozen-products.js';

type Pair = [ops.Tensor, ops.Tensor];

const shapes = (...list: number[][]): Input[] => list.map((shape) => ({ shape }));
const views = (...list: number[][]): Input[] => list.map((shape) => ({ shape, strided: true }));

const unfolds: GradientCheck[] = [
  { op: 'unfold', inputs: shapes([2, 3, 5, 4]), run: (x) => ops.unfold(x, [3, 2]) },
  {
    op: 'unfold',
    title: 'padding, stride and dilation, strided',
    inputs: views([2, 2, 6, 5]),
    run: (x) => ops.unfold(x, 2, { stride: [1, 2], padding: [2, 1], dilation: [3, 2] }),
  },
  {
    op: 'unfold',
    title: 'patches',
    inputs: shapes([1, 2, 4, 6]),
    run: (x) => ops.unfold(x, 2, { stride: 2 }),
  },
];

/** Six choices of four experts; expert 2 receives no token. */
const choices = (like: ops.Tensor) => indices([0, 3, 3, 1, 0, 1], [3, 2], like);

const experts: GradientCheck[] = [
  ...[true, false].map((normalize) => ({
    op: 'routeTopK',
    title: normalize ? 'normalized' : 'of all',
    inputs: shapes([3, 5]),
    run: (x: ops.Tensor) => ops.routeTopK(x, { k: 2, normalize }).weights,
  })),
  {
    op: 'routeTopK',
    title: 'strided',
    inputs: views([4, 6]),
    run: (x) => ops.routeTopK(x, { k: 3, normalize: true }).weights,
  },
  {
    op: 'groupedLinear',
    inputs: shapes([6, 3], [4, 5, 3]),
    run: (x, w) => ops.groupedLinear(x, w, ops.groupRows(choices(x), 4)),
  },
  {
    op: 'groupedLinear',
    title: 'gathered, by some of the experts, strided',
    inputs: views([3, 2], [2, 4, 2]),
    run: (x, w) => ops.groupedLinear(x, w, ops.groupRows(choices(x), 2, 1), true),
  },
  ...[shapes, views].map((inputs) => ({
    op: 'groupedProduct',
    title: inputs.name,
    inputs: inputs([6, 3], [4, 3, 5]),
    run: (x: ops.Tensor, w: ops.Tensor) => ops.groupedProduct(x, w, ops.groupRows(choices(x), 4)),
  })),
  ...frozenProducts,
  {
    op: 'combineRows',
    inputs: shapes([6, 4], [3, 2]),
    run: (y, weights) => ops.combineRows(y, weights, ops.groupRows(choices(y), 4)),
  },
  {
    op: 'combineRows',
    title: 'of some of the experts, strided',
    inputs: views([6, 3], [3, 2]),
    run: (y, weights) => ops.combineRows(y, weights, ops.groupRows(choices(y), 2, 1)),
  },
];

const matmuls: GradientCheck[] = [
  { op: 'matmul', inputs: shapes([3, 5], [5, 7]), run: ops.matmul },
  { op: 'matmul', title: 'transposed operands', inputs: views([3, 5], [5, 7]), run: ops.matmul },
  { op: 'matmul', title: 'row and column', inputs: shapes([1, 5], [5, 1]), run: ops.matmul },
  { op: 'matmul', title: 'vectors', inputs: shapes([5], [5]), run: ops.matmul },
  { op: 'matmul', title: 'matrix and vector', inputs: shapes([3, 5], [5]), run: ops.matmul },
  { op: 'matmul', title: 'batched', inputs: shapes([4, 3, 5], [4, 5, 2]), run: ops.matmul },
  {
    op: 'matmul',
    title: 'batched, transposed',
    inputs: views([4, 3, 5], [4, 5, 2]),
    run: ops.matmul,
  },
  {
    op: 'matmul',
    title: 'two batch dims',
    inputs: shapes([2, 3, 3, 5], [2, 3, 5, 2]),
    run: ops.matmul,
  },
  {
    op: 'matmul',
    title: 'broadcast batch',
    inputs: shapes([2, 1, 3, 4], [3, 4, 2]),
    run: ops.matmul,
  },
  { op: 'matmul', title: 'batch and matrix', inputs: shapes([2, 3, 4], [4, 2]), run: ops.matmul },
  {
    op: 'matmul',
    title: 'sliced rows',
    inputs: shapes([4, 9], [5, 3]),
    run: (a, b) => a.narrow(1, 2, 5).matmul(b),
  },
  { op: 'matmul', title: 'no rows', inputs: shapes([0, 5], [5, 3]), run: ops.matmul },
  { op: 'matmul', title: 'nothing to sum', inputs: shapes([3, 0], [0, 2]), run: ops.matmul },
];

const linears: GradientCheck[] = [
  { op: 'linear', inputs: shapes([3, 5], [7, 5], [7]), run: (x, w, b) => ops.linear(x, w, b) },
  {
    op: 'linear',
    title: 'no bias',
    inputs: shapes([2, 3, 5], [4, 5]),
    run: (x, w) => ops.linear(x, w),
  },
  {
    op: 'linear',
    title: 'one row',
    inputs: shapes([5], [4, 5], [4]),
    run: (x, w, b) => ops.linear(x, w, b),
  },
  {
    op: 'linear',
    title: 'strided',
    inputs: [...views([6, 5]), ...shapes([4, 5], [4])],
    run: (x, w, b) => ops.linear(x, w, b),
  },
  {
    op: 'linear',
    title: 'empty',
    inputs: shapes([0, 5], [4, 5], [4]),
    run: (x, w, b) => ops.linear(x, w, b),
  },
  {
    op: 'linear',
    title: 'frozen weight',
    inputs: [{ shape: [3, 5] }, { shape: [4, 5], grad: false }, { shape: [4] }],
    run: (x, w, b) => ops.linear(x, w, b),
  },
  {
    op: 'linearOfRank',
    inputs: shapes([2, 3, 5], [4, 5], [4]),
    run: (x, w, b) => ops.linearOfRank(x, w, b, true),
  },
  {
    op: 'linearOfRank',
    title: 'of two ranks',
    inputs: [...shapes([3, 6], [4, 6]), { shape: [4] }],
    run(x, w, b) {
      const own = (rank: number): ops.Tensor[] => [x, w].map((of) => of.narrow(1, 3 * rank, 3));
      const [first, second] = [own(0), own(1)] as [Pair, Pair];
      const other = ops.linearOfRank(...second, b.detach(), false);
      return ops.linearOfRank(...first, b, true).add(other);
    },
  },
  {
    op: 'linearGelu',
    inputs: shapes([2, 3, 5], [7, 5], [7]),
    run: (x, w, b) => ops.linearGelu(x, w, b),
  },
  {
    op: 'linearGelu',
    title: 'no bias',
    inputs: shapes([3, 5], [7, 5]),
    run: (x, w) => ops.linearGelu(x, w),
  },
  {
    op: 'linear',
    title: 'of linearGelu',
    inputs: shapes([2, 3, 5], [7, 5], [7], [4, 7], [4]),
    run: (x, w, b, u, c) => ops.linear(ops.linearGelu(x, w, b), u, c),
  },
  {
    op: 'linear',
    title: 'of linearGelu, by two products and by an addition',
    inputs: shapes([3, 5], [7, 5], [7, 7], [7, 7]),
    run: (x, w, u, v) => {
      const y = ops.linearGelu(x, w);
      return ops.linear(y, u).add(y).mul(ops.linear(y, v));
    },
  },
  { op: 'linearPadded', inputs: shapes([2, 3, 5], [7, 5]), run: (x, w) => ops.linearPadded(x, w) },
];

const lookups: GradientCheck[] = [
  {
    op: 'embedding',
    inputs: shapes([7, 3]),
    run: (w) => ops.embedding(w, indices([6, 0, 2, 2, 6, 2], [2, 3], w)),
  },
  {
    op: 'embedding',
    title: 'empty',
    inputs: shapes([7, 3]),
    run: (w) => ops.embedding(w, indices([], [0], w)),
  },
  {
    op: 'gather',
    inputs: shapes([3, 4]),
    run: (x) => ops.gather(x, 1, indices([3, 3, 0, 1, 2, 1], [3, 2], x)),
  },
  {
    op: 'gather',
    title: 'first dim, strided',
    inputs: views([4, 3]),
    run: (x) => ops.gather(x, 0, indices([1, 0, 3, 1, 1, 2], [2, 3], x)),
  },
];

const norms: GradientCheck[] = [
  {
    op: 'layerNorm',
    inputs: shapes([2, 3, 8], [8], [8]),
    run: (x, w, b) => ops.layerNorm(x, w, b),
  },
  {
    op: 'layerNorm',
    title: 'no bias',
    inputs: shapes([5, 7], [7]),
    run: (x, w) => ops.layerNorm(x, w),
  },
  {
    op: 'layerNorm',
    title: 'one tensor as weight and bias',
    inputs: shapes([5, 7], [7]),
    run: (x, w) => ops.layerNorm(x, w, w),
  },
  {
    op: 'layerNorm',
    title: 'one tensor as all',
    inputs: shapes([7]),
    run: (x) => ops.layerNorm(x, x, x),
  },
  {
    op: 'layerNorm',
    title: 'strided',
    inputs: [...views([5, 7]), ...shapes([7], [7])],
    run: (x, w, b) => ops.layerNorm(x, w, b),
  },
  {
    op: 'layerNorm',
    title: 'frozen input',
    inputs: [{ shape: [5, 7], grad: false }, ...shapes([7], [7])],
    run: (x, w, b) => ops.layerNorm(x, w, b),
  },
  {
    op: 'layerNorm',
    title: 'frozen weight',
    inputs: [{ shape: [5, 7] }, { shape: [7], grad: false }, { shape: [7] }],
    run: (x, w, b) => ops.layerNorm(x, w, b),
  },
  {
    op: 'layerNorm',
    title: 'empty',
    inputs: shapes([0, 7], [7], [7]),
    run: (x, w, b) => ops.layerNorm(x, w, b),
  },
  ...[[], [0], [1]].map((dropped) => ({
    op: 'addLayerNorm',
    title: `without the gradients of ${dropped.length ? dropped : 'none'}`,
    inputs: shapes([4, 6], [4, 6], [6], [6]),
    run: (x: ops.Tensor, r: ops.Tensor, w: ops.Tensor, b: ops.Tensor) =>
      ops.addLayerNorm(x, r, w, b),
    dropped,
  })),
  {
    op: 'addLayerNorm',
    title: 'chained',
    inputs: shapes([3, 6], [3, 6], [6], [6]),
    run: chainedNorms,
  },
  {
    op: 'addLayerNorm',
    title: 'x with itself',
    inputs: shapes([3, 6], [6]),
    run: (x, w) => ops.addLayerNorm(x, x, w),
  },
  { op: 'rmsNorm', inputs: shapes([2, 3, 8], [8]), run: (x, w) => ops.rmsNorm(x, w) },
  {
    op: 'addRmsNorm',
    inputs: shapes([4, 6], [4, 6], [6]),
    run: (x, r, w) => ops.addRmsNorm(x, r, w),
  },
  {
    op: 'addRmsNorm',
    title: 'strided',
    inputs: [...views([4, 6], [4, 6]), ...shapes([6])],
    run: (x, r, w) => ops.addRmsNorm(x, r, w),
  },
];

/** A residual stream through two normalisations, as between the blocks of a transformer. */
function chainedNorms(x: ops.Tensor, r: ops.Tensor, w: ops.Tensor, b: ops.Tensor): ops.Tensor {
  const [sum, normed] = ops.addLayerNorm(x, r, w, b);
  const [, out] = ops.addLayerNorm(normed.tanh(), sum, w, b);
  return out;
}

const attentions: GradientCheck[] = [
  {
    op: 'attention',
    inputs: shapes([2, 2, 5, 4], [2, 2, 5, 4], [2, 2, 5, 4]),
    run: (q, k, v) => ops.attention(q, k, v),
  },
  {
    op: 'attention',
    title: 'one tensor as queries, keys and values',
    inputs: shapes([1, 2, 5, 4]),
    run: (x) => ops.attention(x, x, x, { causal: true }),
  },
  {
    op: 'attention',
    title: 'causal',
    inputs: shapes([1, 2, 5, 4], [1, 2, 5, 4], [1, 2, 5, 4]),
    run: (q, k, v) => ops.attention(q, k, v, { causal: true, scale: 0.7 }),
  },
  {
    op: 'attention',
    title: 'grouped heads',
    inputs: shapes([1, 4, 3, 4], [1, 2, 3, 4], [1, 2, 3, 4]),
    run: (q, k, v) => ops.attention(q, k, v, { causal: true }),
  },
  {
    op: 'attention',
    title: 'more keys than queries',
    inputs: shapes([1, 2, 3, 4], [1, 2, 7, 4], [1, 2, 7, 4]),
    run: (q, k, v) => ops.attention(q, k, v, { causal: true }),
  },
  {
    op: 'attention',
    title: 'strided',
    inputs: views([1, 2, 5, 4], [1, 2, 5, 4], [1, 2, 5, 4]),
    run: (q, k, v) => ops.attention(q, k, v),
  },
  {
    op: 'attention',
    title: 'then merged',
    inputs: shapes([2, 2, 3, 4], [2, 2, 3, 4], [2, 2, 3, 4]),
    run: (q, k, v) => ops.attention(q, k, v).transpose(1, 2).reshape([2, 3, 8]),
  },
  {
    op: 'attention',
    title: 'a mask of numbers by query and key, and one of keys',
    inputs: [
      ...shapes([2, 2, 5, 4], [2, 2, 7, 4], [2, 2, 7, 4]),
      { shape: [5, 7], grad: false },
      { shape: [2, 7], grad: false },
    ],
    run: (q, k, v, mask, keys) =>
      ops.attention(q, k, v, { mask: mask as ops.Tensor, keyMask: (keys as ops.Tensor).gt(-0.5) }),
  },
  {
    op: 'attention',
    title: 'bools by head, a query that sees nothing, lengths and causality',
    inputs: [
      ...shapes([2, 4, 5, 4], [2, 2, 6, 4], [2, 2, 6, 4]),
      { shape: [1, 4, 5, 6], grad: false },
    ],
    run: (q, k, v, mask) => {
      const random = (mask as ops.Tensor).gt(-0.4);
      const seeing = ops.arange(5, { device: q.device }).ne(3).reshape([5, 1]);
      const options = { mask: random.logicalAnd(seeing), keyLengths: [5, 2], causal: true };
      return ops.attention(q, k, v, options);
    },
  },
  {
    op: 'attention',
    title: 'dropout and a mask',
    inputs: [
      ...shapes([2, 2, 5, 4], [2, 2, 7, 4], [2, 2, 7, 4]),
      { shape: [2, 1, 5, 7], grad: false },
    ],
    run: (q, k, v, mask) => ops.attention(q, k, v, { mask: mask as ops.Tensor, dropout: 0.4 }),
  },
  {
    op: 'attention',
    title: 'causal queries before the first key',
    inputs: shapes([1, 2, 7, 4], [1, 2, 3, 4], [1, 2, 3, 4]),
    run: (q, k, v) => ops.attention(q, k, v, { causal: true }),
  },
  {
    op: 'causalSelfAttentionPacked',
    inputs: shapes([2, 5, 24]),
    run: (qkv) => ops.causalSelfAttentionPacked(qkv, 2),
  },
  {
    op: 'attention',
    title: 'documents, padding and a window',
    inputs: shapes([2, 4, 7, 4], [2, 2, 7, 4], [2, 2, 7, 4]),
    run: (q, k, v) => {
      const documents = numbers([0, 0, 0, 0, 1, 1, 1, -1, 2, 2, 2, 2, 2, -1], [2, 7], q);
      return ops.attention(q, k, v, { causal: true, window: 3, documents });
    },
  },
  {
    op: 'causalSelfAttentionPacked',
    title: 'documents and a window',
    inputs: shapes([2, 5, 24]),
    run: (qkv) => {
      const documents = numbers([0, 0, 1, 1, 1, -1, 0, 0, 0, 0], [2, 5], qkv);
      return ops.causalSelfAttentionPacked(qkv, 2, { documents, window: 2 });
    },
  },
  { op: 'rope', inputs: shapes([2, 3, 2, 4]), run: (x) => rotate(x) },
  {
    op: 'rope',
    title: 'positions by row',
    inputs: shapes([2, 3, 2, 4]),
    run: (x) => rotate(x, numbers([2, 0, 1, 1, 1, 0], [2, 3], x)),
  },
];

function numbers(values: number[], shape: number[], { device }: ops.Tensor): ops.Tensor {
  return ops.Tensor.from(values, { shape, dtype: 'i32', device });
}

function rotate(x: ops.Tensor, positions: ops.Tensor | null = null): ops.Tensor {
  const angle = (i: number): number => Math.floor(i / 2) * 0.3 + (i % 2) * 0.1;
  const table = (f: (a: number) => number): ops.Tensor => {
    const values = Array.from({ length: 6 }, (_, i) => f(angle(i)));
    const data = x.dtype === 'f64' ? Float64Array.from(values) : values;
    return ops.Tensor.from(data, { shape: [3, 2], dtype: x.dtype, device: x.device });
  };
  return ops.rope(x, table(Math.cos), table(Math.sin), positions);
}

const scaledSquare = ops.customFunction<ops.Tensor>({
  name: 'scaled_square',
  forward(context, x) {
    context.save(x);
    context.values.factor = 3;
    return x.square().mul(3);
  },
  backward(context, grad) {
    const [x] = context.saved as [ops.Tensor];
    return (grad as ops.Tensor).mul(x).mul(2 * (context.values.factor as number));
  },
});

const around: GradientCheck[] = [
  { op: 'dropout', inputs: shapes([5, 7]), run: (x) => ops.dropout(x, 0.4) },
  {
    op: 'dropoutOfChannels',
    inputs: shapes([5, 3]),
    run: (x) => ops.dropoutOfChannels(x, 0.4, { first: 2, count: 3, whole: 7 }),
  },
  { op: 'dropout', title: 'strided', inputs: views([5, 7]), run: (x) => ops.dropout(x, 0.4) },
  { op: 'customFunction', inputs: shapes([3, 4]), run: (x) => scaledSquare(x).sin() },
  {
    op: 'checkpoint',
    inputs: shapes([3, 4], [5, 4]),
    rereads: true,
    run: (x, w) => ops.checkpoint((y) => ops.linear(y.tanh(), w).square(), x),
  },
  {
    op: 'checkpoint',
    title: 'two outputs, dropout',
    inputs: shapes([3, 4], [4]),
    run: (x, w) => ops.checkpoint((a, b) => [ops.dropout(a, 0.5).mul(b), a.exp()], x, w),
  },
  {
    op: 'checkpoint',
    title: 'nested',
    inputs: shapes([3, 4]),
    run: (x) => ops.checkpoint((a) => ops.checkpoint((b) => b.sin().square(), a).exp(), x),
  },
  {
    op: 'checkpoint',
    title: 'parameters only',
    inputs: [{ shape: [3, 4], grad: false }, { shape: [4] }],
    rereads: true,
    run: (x, w) => ops.checkpoint((a) => a.mul(w).tanh(), x),
  },
  {
    op: 'checkpoint',
    title: 'chained',
    inputs: shapes([3, 4]),
    run: (x) =>
      ops.checkpoint(
        (a) => a.square().sin(),
        ops.checkpoint((a) => a.exp().tanh(), x),
      ),
  },
];

export const checks: GradientCheck[] = [
  ...experts,
  ...matmuls,
  ...unfolds,
  ...linears,
  ...lookups,
  ...norms,
  ...attentions,
  ...around,
];
export const cases = gradientCases(checks);
