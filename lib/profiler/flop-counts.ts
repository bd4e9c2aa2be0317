// Counts the floating-point operations of each op by a formula over the shapes of its arguments.

import { type OpArgs, opNames, type UpdateOp } from '../runtime/kernels.generated.js';
import { leading, required } from '../runtime/required.js';
import { numel, type View } from '../runtime/view.js';
import { elementFlops } from './element-flops.generated.js';

/** Work of an op or a module. One multiply-accumulate counts as two floating-point operations. */
export interface Work {
  /** Multiply-accumulates of matrix products. */
  macs: number;
  /** All floating-point operations, 2 for each multiply-accumulate. */
  flops: number;
}

type WorkFormula<Args> = (args: Args) => Work;

const countMacs = (macs: number): Work => ({ macs, flops: 2 * macs });
const countFlops = (flops: number): Work => ({ macs: 0, flops });
const size = (view: View): number => numel(view.shape);

const GELU = { none: 0, gelu: 1, gelu_grad: 2 } as const;

/** Returns 2 M N K per matrix of the batch. The bias is not counted, as in DeepSpeed. */
function matmulWork({ a, out, transA, epilogue }: OpArgs['Matmul']): Work {
  const K = required(a.shape[a.shape.length - (transA ? 2 : 1)]);
  const { macs, flops } = countMacs(size(out) * K);
  return { macs, flops: flops + GELU[epilogue] * size(out) };
}

/** Returns one operation per logit, plus the product if the op computes the logits. */
function routingWork({ logits, x }: OpArgs['RouteTopK']): Work {
  const { macs, flops } = countMacs(x ? size(logits) * required(x.shape[1]) : 0);
  return { macs, flops: flops + size(logits) };
}

/** Returns two products per element of `out`, plus the gate. */
function gatedLinearWork({ x, out }: OpArgs['GatedLinear'] | OpArgs['QuantizedGatedLinear']): Work {
  const { macs, flops } = countMacs(2 * size(out) * required(x.shape[1]));
  return { macs, flops: flops + elementFlops.Swiglu.out * size(out) };
}

/** Returns the products of AdapterExpand, plus the gate. */
function adapterSumWork({ rows, b, b2, b3, out, gated }: OpArgs['AdapterSum']): Work {
  const factors = [b, b2, b3].reduce((sum, factor) => sum + (factor ? size(factor) : 0), 0);
  const { macs, flops } = countMacs((size(rows) * factors) / required(b.shape[0]));
  return { macs, flops: flops + (gated ? elementFlops.Swiglu.out * size(out) : 0) };
}

/** Returns the number of (query, key) pairs outside the window, for T queries and S keys. */
function countOutsideWindow(T: number, S: number, window: number, causal: boolean): number {
  if (window === 0) return 0;
  const triangle = (side: number): number => Math.max(0, side) ** 2 / 2;
  const before = triangle(S - window) - triangle(S - T - window);
  return before + (causal ? 0 : triangle(T - window));
}

/**
 * Returns the multiply-accumulates of the two products of attention: 2 B H T S D.
 *
 * - A causal mask halves the T x T part. A window removes the pairs outside it.
 * - All documents count as one document, and layouts as dense, because only the device has them.
 * - The softmax is not counted.
 */
function attentionProducts({
  q,
  k,
  causal,
  window,
}: OpArgs['Attention'] | OpArgs['AttentionBackward']): number {
  const [B, H, T, D] = leading(q.shape, 4);
  const S = required(k.shape[2]);
  const hidden = (causal ? (T * T) / 2 : 0) + countOutsideWindow(T, S, window, causal);
  return 2 * B * H * D * (T * S - hidden);
}

/**
 * Returns the multiply-accumulates of the two products of each query with its sequence's whole
 * table, because only the device has the lengths.
 */
function pagedProducts({
  q,
  pool,
  tables,
  window,
}: OpArgs['PagedAttention'] | OpArgs['RotaryAttention']): number {
  const tokens = required(tables.shape[1]) * required(pool.shape[3]);
  return 2 * size(q) * (window > 0 ? Math.min(window, tokens) : tokens);
}

/** Returns four products of each token's heads with the state [D, E]: decay, read, write, query. */
const deltaProducts = ({ k, v }: Record<'k' | 'v', View>): number =>
  4 * size(v) * required(k.shape[k.shape.length - 1]);

/** Returns three products of each token's heads with the state [N, P]: decay, write, read. */
const spaceProducts = ({ x, b }: Record<'x' | 'b', View>): number =>
  3 * size(x) * required(b.shape[b.shape.length - 1]);

/** Ops without a formula per element. */
type CountedOp = Exclude<keyof OpArgs, UpdateOp | keyof typeof elementFlops>;

/**
 * The counts of products. Counts per element are in the headers of the ops:
 *
 * - Element-wise functions count 1, their backward 2.
 * - Normalization and softmax count as in DeepSpeed (5, 4 without mean and bias, 1), and twice
 *   that in the backward.
 * - Attention's backward counts the four products of its gradients. Recomputed scores do not
 *   count, as in model FLOPs utilization.
 * - Other ops count 0: they move, select or draw values, or belong to the update.
 *
 * Sources: DeepSpeed profiling/flops_profiler/profiler.py; Chowdhery et al. 2022 (PaLM), appendix
 * B.
 */
const formulas: { readonly [Name in CountedOp]?: WorkFormula<OpArgs[Name]> } = {
  Matmul: matmulWork,
  // Every row counts. Rows of another rank's experts come after the last group.
  GroupedMatmul: ({ x, out }) => countMacs(size(out) * required(x.shape[1])),
  GroupedWeightGradient: ({ x, dout }) => countMacs(size(dout) * required(x.shape[1])),
  // The host does not have the adapters' ranks, so each entry counts with the largest rank.
  AdapterShrink: ({ x, h }) => countMacs(size(h) * required(x.shape[1])),
  AdapterExpand: ({ h, out }) => countMacs(size(h) * required(out.shape[1])),
  AdapterSum: adapterSumWork,
  CombineRows: ({ places, out }) => countFlops(2 * size(places) * required(out.shape[1])),
  CombineRowsBackward: ({ places, dout }) => countFlops(3 * size(places) * required(dout.shape[1])),
  InvariantLinear: ({ x, out }) => countMacs(size(out) * required(x.shape[1])),
  Fp8Matmul: ({ a, out }) => countMacs(size(out) * required(a.shape[1])),
  RouteTopK: routingWork,
  QuantizedLinear: ({ x, out }) => countMacs(size(out) * required(x.shape[1])),
  GatedLinear: gatedLinearWork,
  QuantizedGatedLinear: gatedLinearWork,
  Attention: (args) => countMacs(attentionProducts(args)),
  AttentionBackward: (args) => countMacs(2 * attentionProducts(args)),
  PagedAttention: (args) => countMacs(pagedProducts(args)),
  RotaryAttention: (args) => countMacs(pagedProducts(args)),
  GatedDelta: (args) => countMacs(deltaProducts(args)),
  GatedDeltaBackward: (args) => countMacs(2 * deltaProducts(args)),
  GatedDeltaStep: (args) => countMacs(deltaProducts(args)),
  StateSpace: (args) => countMacs(spaceProducts(args)),
  StateSpaceBackward: (args) => countMacs(2 * spaceProducts(args)),
  StateSpaceStep: (args) => countMacs(spaceProducts(args)),
};

/** Returns the work of an op by the FLOPs per element that its header states for each operand. */
function countElementWork(name: string, args: Record<string, View | null>): Work {
  const rows: Record<string, Record<string, number>> = elementFlops;
  const terms = Object.entries(rows[name] ?? {});
  const sizes = terms.map(([operand, flops]) => {
    const view = args[operand];
    return view ? flops * size(view) : 0;
  });
  return countFlops(sizes.reduce((sum, each) => sum + each, 0));
}

/** Returns the work of op `op` with the arguments of its kernel function. */
export function countWork(op: number, args: object): Work {
  const name = opNames[op] as string;
  const count = (formulas as Record<string, WorkFormula<never>>)[name];
  return count ? count(args as never) : countElementWork(name, args as Record<string, View | null>);
}
