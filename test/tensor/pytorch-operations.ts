// Each operation of docs/pytorch.md, by its name in PyTorch; scripts/record-operations.py has the
// same calls for PyTorch.
import * as ds from '../../lib/tensor/index.js';

type Tensor = ds.Tensor;

/** The inputs of test/golden/operations.json, on a device. */
export type Inputs = Record<
  'a' | 'b' | 'p' | 'u' | 'row' | 'other' | 'm' | 's' | 't' | 'w' | 'q' | 'k' | 'v' | 'image',
  Tensor
> &
  Record<'rows' | 'cells' | 'labels', Tensor>;

type Operation = (inputs: Inputs) => Tensor;

const options = ({ a }: Inputs) => ({ dtype: a.dtype, device: a.device });
/** A copy of values to change in place. */
const copy = (x: Tensor): Tensor => x.detach().clone();

const pointwise: Record<string, Operation> = {
  abs: ({ a }) => a.abs(),
  neg: ({ a }) => a.neg(),
  sign: ({ a }) => a.sign(),
  floor: ({ a }) => a.floor(),
  ceil: ({ a }) => a.ceil(),
  round: ({ a }) => a.round(),
  trunc: ({ a }) => a.trunc(),
  exp: ({ a }) => a.exp(),
  expm1: ({ a }) => a.expm1(),
  square: ({ a }) => a.square(),
  sin: ({ a }) => a.sin(),
  cos: ({ a }) => a.cos(),
  tan: ({ a }) => a.tan(),
  tanh: ({ a }) => a.tanh(),
  erf: ({ a }) => a.erf(),
  sigmoid: ({ a }) => a.sigmoid(),
  relu: ({ a }) => a.relu(),
  reciprocal: ({ p }) => p.reciprocal(),
  log: ({ p }) => p.log(),
  log1p: ({ p }) => p.log1p(),
  sqrt: ({ p }) => p.sqrt(),
  rsqrt: ({ p }) => p.rsqrt(),
  add: ({ a, row }) => a.add(row),
  sub: ({ a, b }) => a.sub(b),
  mul: ({ a, b }) => a.mul(b),
  div: ({ a, p }) => a.div(p),
  pow: ({ p, b }) => p.pow(b),
  maximum: ({ a, b }) => a.maximum(b),
  minimum: ({ a, b }) => a.minimum(b),
  atan2: ({ a, b }) => a.atan2(b),
  clamp: ({ a }) => a.clamp(-0.7, 0.9),
  silu: ({ a }) => a.silu(),
  gelu: ({ a }) => a.gelu(),
  'gelu tanh': ({ a }) => a.gelu('tanh'),
  leaky_relu: ({ a }) => a.leakyRelu(0.1),
  elu: ({ a }) => a.elu(0.7),
  softplus: ({ a }) => a.softplus({ beta: 2 }),
  softmax: ({ a }) => a.softmax(),
  log_softmax: ({ a }) => a.logSoftmax(),
};

const questions: Record<string, Operation> = {
  eq: ({ a }) => a.eq(0.25),
  ne: ({ a }) => a.ne(0.25),
  lt: ({ a }) => a.lt(0.25),
  le: ({ a }) => a.le(0.25),
  gt: ({ a }) => a.gt(0.25),
  ge: ({ a }) => a.ge(0.25),
  isnan: ({ a }) => a.log().isnan(),
  isinf: ({ a }) => a.relu().reciprocal().isinf(),
  isfinite: ({ a }) => a.relu().reciprocal().isfinite(),
  logical_and: ({ a, b }) => a.gt(0).logicalAnd(b.gt(0)),
  logical_or: ({ a, b }) => a.gt(0).logicalOr(b.gt(0)),
  logical_xor: ({ a, b }) => a.gt(0).logicalXor(b.gt(0)),
  logical_not: ({ a }) => a.gt(0).logicalNot(),
  any: ({ a }) => a.gt(1.6).any(1),
  all: ({ a }) => a.gt(-1.6).all(1),
};

const choices: Record<string, Operation> = {
  where: ({ a, b }) => ds.where(a.gt(0), a, b),
  masked_fill: ({ a, b }) => a.maskedFill(b.gt(0), -2),
  tril: ({ s }) => s.tril(-1),
  triu: ({ s }) => s.triu(1),
  gather: ({ a, cells }) => a.gather(1, cells),
  take_along_dim: ({ a, cells }) => a.gather(1, cells),
  scatter: ({ a, s, cells }) => a.scatter(1, cells, s.narrow(0, 0, 3)),
  scatter_add: ({ a, s, cells }) => a.scatterAdd(1, cells, s.narrow(0, 0, 3)),
  index_select: ({ a, rows }) => a.indexSelect(0, rows),
  embedding: ({ a, rows }) => ds.embedding(a, rows),
  one_hot: ({ rows }) => ds.oneHot(rows, 3),
};

const reductions: Record<string, Operation> = {
  sum: ({ a }) => a.sum(1),
  mean: ({ a }) => a.mean({ dim: 0, keepDim: true }),
  prod: ({ a }) => a.prod(1),
  amax: ({ a }) => a.max(1),
  amin: ({ a }) => a.min(0),
  var: ({ a }) => a.var(1),
  std: ({ a }) => a.std(1),
  norm: ({ a }) => a.norm(2, 1),
  logsumexp: ({ a }) => a.logsumexp(1),
  count_nonzero: ({ a }) => a.relu().countNonzero(1),
  argmax: ({ a }) => a.argmax(1),
  argmin: ({ a }) => a.argmin(1),
  sort: ({ a }) => a.sort({ dim: 1, descending: true }).values,
  argsort: ({ a }) => a.argsort(1),
  topk: ({ a }) => a.topk(3, 1).values,
  cumsum: ({ a }) => a.cumsum(1),
  cumprod: ({ a }) => a.cumprod(1),
};

/** Query t of three sees keys up to 4 + t of seven. */
const reach = ({ q, k, v }: Inputs): Tensor => ds.attention(q, k, v, { causal: true });

const products: Record<string, Operation> = {
  matmul: ({ t, m }) => t.matmul(m),
  mm: ({ a, m }) => a.matmul(m),
  bmm: ({ t, w }) => t.bmm(w),
  dot: ({ row, other }) => row.dot(other),
  outer: ({ row, other }) => row.outer(other),
  einsum: ({ t, w }) => ds.einsum('btc,bcd->tbd', t, w),
  linear: ({ t, a }) => ds.linear(t, a, null),
  addmm: ({ a, m }) => a.narrow(1, 0, 5).add(a.matmul(m)),
  baddbmm: ({ t, w }) => t.narrow(2, 0, 5).add(t.bmm(w)),
  scaled_dot_product_attention: reach,
};

const views: Record<string, Operation> = {
  reshape: ({ t }) => t.reshape([7, 6]),
  view: ({ t }) => t.view([3, 14]),
  flatten: ({ t }) => t.flatten(1),
  unflatten: ({ m }) => m.narrow(1, 0, 4).unflatten(1, [2, 2]),
  transpose: ({ t }) => t.transpose(0, 2),
  permute: ({ t }) => t.permute([2, 0, 1]),
  movedim: ({ t }) => t.movedim(0, -1),
  expand: ({ row }) => row.expand([3, 7]),
  squeeze: ({ q }) => q.squeeze(0),
  unsqueeze: ({ a }) => a.unsqueeze(1),
  narrow: ({ a }) => a.narrow(1, 2, 3),
  select: ({ t }) => t.select(1, 2),
  'x[:, 1:5]': ({ a }) => a.slice(1, 1, 5),
  split: ({ a }) => a.split(3, 1)[2] as Tensor,
  chunk: ({ a }) => a.chunk(2, 1)[1] as Tensor,
  unbind: ({ a }) => a.unbind(1)[4] as Tensor,
  diagonal: ({ s }) => s.diagonal(1),
};

const copies: Record<string, Operation> = {
  clone: ({ a }) => a.clone(),
  contiguous: ({ a }) => a.transpose().contiguous(),
  cat: ({ a, b }) => ds.cat([a, b], 1),
  stack: ({ a, b }) => ds.stack([a, b], 1),
  repeat: ({ a }) => a.repeat(2, 1),
  repeat_interleave: ({ a }) => a.repeatInterleave(2, 1),
  flip: ({ a }) => a.flip(1),
  roll: ({ a }) => a.roll(2, 1),
  pad: ({ a }) => a.pad([2, 1]),
  'pad reflect': ({ t }) => t.pad([2, 1], 'reflect'),
  to: ({ a }) => a.detach().mul(10).to('i32'),
};

const inPlace: Record<string, Operation> = {
  add_: ({ a, b }) => copy(a).add_(b.detach()),
  sub_: ({ a, b }) => copy(a).sub_(b.detach()),
  mul_: ({ a, b }) => copy(a).mul_(b.detach()),
  div_: ({ a, p }) => copy(a).div_(p.detach()),
  neg_: ({ a }) => copy(a).neg_(),
  exp_: ({ a }) => copy(a).exp_(),
  sqrt_: ({ p }) => copy(p).sqrt_(),
  relu_: ({ a }) => copy(a).relu_(),
  clamp_: ({ a }) => copy(a).clamp_(-0.7, 0.9),
  fill_: ({ a }) => copy(a).fill_(0.5),
  zero_: ({ a }) => copy(a).zero_(),
  copy_: ({ a, row }) => copy(a).copy_(row.detach()),
  masked_fill_: ({ a, b }) => copy(a).maskedFill_(b.detach().gt(0), -2),
};

const creation: Record<string, Operation> = {
  zeros: (f) => ds.zeros([3, 7], options(f)),
  ones: (f) => ds.ones([3, 7], options(f)),
  full: (f) => ds.full([3, 7], 0.3, options(f)),
  zeros_like: ({ a }) => ds.zerosLike(a),
  ones_like: ({ a }) => ds.onesLike(a),
  full_like: ({ a }) => ds.fullLike(a, 0.3),
  arange: (f) => ds.arange(7, { start: 3, step: 2, ...options(f) }),
  linspace: (f) => ds.linspace(-1, 2, 7, options(f)),
  eye: (f) => ds.eye(3, 5, options(f)),
};

const functional: Record<string, Operation> = {
  layer_norm: ({ a, row, other }) => ds.layerNorm(a, row, other),
  rms_norm: ({ a, row }) => ds.rmsNorm(a, row, 1e-6),
  unfold: ({ image }) => ds.unfold(image, 3, { padding: 1, stride: 2 }),
  cross_entropy: ({ a, labels }) => ds.crossEntropy(a, labels, { labelSmoothing: 0.1 }),
  nll_loss: ({ a, labels }) => ds.nllLoss(a.logSoftmax(), labels),
  mse_loss: ({ a, b }) => ds.mse(a, b),
  l1_loss: ({ a, b }) => ds.l1Loss(a, b, { reduction: 'sum' }),
  huber_loss: ({ a, b }) => ds.huberLoss(a, b, { delta: 0.7 }),
  smooth_l1_loss: ({ a, b }) => ds.smoothL1Loss(a, b, { beta: 0.7 }),
  binary_cross_entropy_with_logits: ({ a, u }) => ds.binaryCrossEntropyWithLogits(a, u),
  kl_div: ({ a, b }) => ds.klDiv(a.logSoftmax(), b.softmax(), { reduction: 'batchmean' }),
};

const unit = (x: Tensor): Tensor => x.div(x.norm(2, { dim: 1, keepDim: true }));

/** Operations without a function here, written as docs/pytorch.md describes. */
const written: Record<string, Operation> = {
  logsigmoid: ({ a }) => a.neg().softplus().neg(),
  log2: ({ p }) => p.log().mul(Math.LOG2E),
  glu: ({ q }) => q.narrow(-1, 0, 2).mul(q.narrow(-1, 2, 2).sigmoid()),
  normalize: ({ a }) => unit(a),
  cosine_similarity: ({ a, b }) => unit(a).mul(unit(b)).sum(1),
  lerp: ({ a, b }) => a.add(b.sub(a).mul(0.3)),
  addcmul: ({ a, b, p }) => a.add(b.mul(p).mul(0.5)),
  logaddexp: ({ a, b }) => ds.stack([a, b]).logsumexp(0),
  remainder: ({ a }) => a.detach().sub(a.detach().div(0.4).floor().mul(0.4)),
  floor_divide: ({ a }) => a.detach().div(0.4).floor(),
};

/** By the name in PyTorch; after a space, the options. */
export const operations: Record<string, Operation> = {
  ...pointwise,
  ...questions,
  ...choices,
  ...reductions,
  ...products,
  ...views,
  ...copies,
  ...inPlace,
  ...creation,
  ...functional,
  ...written,
};

/** A draw of 1001 numbers between `low` and `high`, around `mean`. */
export interface Draw {
  run(device: ds.Tensor['device']): Tensor;
  low: number;
  high: number;
  mean: number;
}

const COUNT = 1001;
/** Random ops by the name in PyTorch; the same numbers on every device. */
export const draws: Record<string, Draw> = {
  randn: { run: (device) => ds.randn([COUNT], { device }), low: -6, high: 6, mean: 0 },
  rand: { run: (device) => ds.uniform([COUNT], { device }), low: 0, high: 1, mean: 0.5 },
  randint: { run: (device) => ds.randint(2, 9, [COUNT], { device }), low: 2, high: 8, mean: 5 },
  randperm: { run: (device) => ds.randperm(COUNT, { device }), low: 0, high: 1000, mean: 500 },
  multinomial: {
    run: (device) =>
      ds.Tensor.from([0.1, 0, 0.2, 0.7], { device }).multinomial(COUNT, { replacement: true }),
    low: 0,
    high: 3,
    mean: 2.5,
  },
  dropout: {
    run: (device) => ds.dropout(ds.ones([COUNT], { device }), 0.5),
    low: 0,
    high: 2,
    mean: 1,
  },
  normal_: {
    run: (device) => ds.zeros([COUNT], { device }).normal_(3, 2),
    low: -9,
    high: 15,
    mean: 3,
  },
  uniform_: {
    run: (device) => ds.zeros([COUNT], { device }).uniform_(2, 4),
    low: 2,
    high: 4,
    mean: 3,
  },
};
