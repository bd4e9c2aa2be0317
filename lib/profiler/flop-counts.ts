// Arithmetic of each op from the shapes of its arguments: one formula per op, none measured.
import { type OpArgs, opNames, type UpdateOp } from '../runtime/kernels.generated.js';
import { numel, type View } from '../runtime/view.js';

/**
 * Multiply-accumulates of matrix products, and all floating-point operations: 2 per MAC and the
 * rest.
 */
export interface Work {
  /** Multiply-accumulates of matrix products. */
  macs: number;
  /** All floating-point operations, 2 for each multiply-accumulate. */
  flops: number;
}

type Count<Args> = (args: Args) => Work;

const products = (macs: number): Work => ({ macs, flops: 2 * macs });
const plain = (flops: number): Work => ({ macs: 0, flops });
const size = (view: View): number => numel(view.shape);

const nothing = (): Work => ({ macs: 0, flops: 0 });

const GELU = { none: 0, gelu: 1, gelu_grad: 2 } as const;

/** 2 M N K for each matrix of the batch. The bias is not counted, as in DeepSpeed. */
function matmul({ a, out, transA, epilogue }: OpArgs['Matmul']): Work {
  const K = a.shape[a.shape.length - (transA ? 2 : 1)] as number;
  const { macs, flops } = products(size(out) * K);
  return { macs, flops: flops + GELU[epilogue] * size(out) };
}

/** Pairs of T queries and S keys that are further apart than a window lets them see. */
function outsideWindow(T: number, S: number, window: number, causal: boolean): number {
  if (window === 0) return 0;
  const triangle = (side: number): number => Math.max(0, side) ** 2 / 2;
  const before = triangle(S - window) - triangle(S - T - window);
  return before + (causal ? 0 : triangle(T - window));
}

/**
 * The two products of B H queries with their keys: 4 B H T S D, of which a causal mask halves the T
 * x T part, and a window leaves out what lies outside it. Documents are counted as one, since their
 * lengths are on the device. The softmax is not counted.
 */
function attentionProducts({
  q,
  k,
  causal,
  window,
}: OpArgs['Attention'] | OpArgs['AttentionBackward']): number {
  const [B, H, T, D] = q.shape as [number, number, number, number];
  const S = k.shape[2] as number;
  const hidden = (causal ? (T * T) / 2 : 0) + outsideWindow(T, S, window, causal);
  return 2 * B * H * D * (T * S - hidden);
}

/**
 * The two products of each query with all that its sequence's table has room for: the lengths are
 * on the device.
 */
function pagedProducts({ q, pool, tables, window }: OpArgs['PagedAttention']): number {
  const room = (tables.shape[1] as number) * (pool.shape[3] as number);
  return 2 * size(q) * (window > 0 ? Math.min(window, room) : room);
}

/** Additions of a residual stream inside a normalisation. */
const residual = (view: View | null): number => (view ? size(view) : 0);

/**
 * The counts. Elementwise functions are 1 per element whatever their cost, their backwards 2, the
 * normalisations' and the softmax's those of DeepSpeed (5, 4 without mean and bias, 1), backwards
 * twice that. Attention's backward is the four products of its gradients; scores that a kernel
 * computes again are left out, as in model FLOPs utilisation. Ops that are not here move, choose or
 * draw values, or belong to the update, which is no part of the model. Source: DeepSpeed
 * profiling/flops_profiler/profiler.py; Chowdhery et al. 2022 (PaLM), appendix B.
 */
const counts: { readonly [Name in Exclude<keyof OpArgs, UpdateOp>]?: Count<OpArgs[Name]> } = {
  Unary: ({ out }) => plain(size(out)),
  UnaryBackward: ({ dx }) => plain(2 * size(dx)),
  Binary: ({ out }) => plain(size(out)),
  Compare: ({ out }) => plain(size(out)),
  Scale: ({ out }) => plain(size(out)),
  Reduce: ({ in: x }) => plain(size(x)),
  ArgMax: ({ in: x }) => plain(size(x)),
  Softmax: ({ out }) => plain(size(out)),
  SoftmaxBackward: ({ dx }) => plain(2 * size(dx)),
  Matmul: matmul,
  RouteTopK: ({ logits }) => plain(size(logits)),
  RouteTopKBackward: ({ dlogits }) => plain(2 * size(dlogits)),
  // Every row counts; those that another rank's experts work on are behind the last group.
  GroupedMatmul: ({ x, out }) => products(size(out) * (x.shape[1] as number)),
  GroupedWeightGradient: ({ x, dout }) => products(size(dout) * (x.shape[1] as number)),
  CombineRows: ({ places, out }) => plain(2 * size(places) * (out.shape[1] as number)),
  CombineRowsBackward: ({ places, dout }) => plain(3 * size(places) * (dout.shape[1] as number)),
  QuantizedLinear: ({ x, out }) => products(size(out) * (x.shape[1] as number)),
  EmbeddingBackward: ({ dout }) => plain(size(dout)),
  ScatterAdd: ({ src }) => plain(size(src)),
  Scan: ({ out }) => plain(size(out)),
  CumprodBackward: ({ dx }) => plain(3 * size(dx)),
  LayerNorm: ({ out, residual: r }) => plain(5 * size(out) + residual(r)),
  LayerNormBackward: ({ dout, dsum }) => plain(10 * size(dout) + residual(dsum)),
  RmsNorm: ({ out, residual: r }) => plain(4 * size(out) + residual(r)),
  RmsNormBackward: ({ dout, dsum }) => plain(8 * size(dout) + residual(dsum)),
  Rope: ({ out }) => plain(3 * size(out)),
  Attention: (args) => products(attentionProducts(args)),
  AttentionBackward: (args) => products(2 * attentionProducts(args)),
  PagedAttention: (args) => products(pagedProducts(args)),
  Swiglu: ({ out }) => plain(2 * size(out)),
  SwigluBackward: ({ dout }) => plain(4 * size(dout)),
  CrossEntropy: ({ logits }) => plain(size(logits)),
  CrossEntropyBackward: ({ dlogits }) => plain(2 * size(dlogits)),
};

/** The work of op number `op` with the arguments of its kernel function. */
export function workOf(op: number, args: object): Work {
  const count = (counts as Record<string, Count<never>>)[opNames[op] as string] ?? nothing;
  return count(args as never);
}
