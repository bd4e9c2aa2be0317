// The mean cross-entropy of rows by fused kernels, alone and with the vocabulary head before it.
import { type DType, statisticOf } from '../../runtime/dtype.js';
import * as kernels from '../../runtime/kernels.generated.js';
import { type OptionNames, readOptions } from '../../runtime/options.js';
import { requireInteger } from '../../runtime/require-number.js';
import { describe, isContiguous, numel, type View } from '../../runtime/view.js';
import { isGradEnabled, recomputing, record } from '../autograd.js';
import { Tensor } from '../tensor.js';
import { requireIndex } from './indexing.js';
import { paddedColumns } from './linear.js';
import { gemmRows } from './matmul.js';
import {
  constant,
  expanded,
  overwriteOrAdd,
  packed,
  requireInput,
  rowCount,
  shapeError,
  viewOf,
  writeTogether,
} from './shapes.js';
import { contiguous } from './views.js';

/** PyTorch's default. */
const IGNORE_INDEX = -100;

/** Which rows a loss over classes leaves out. */
export interface RowOptions {
  /** Rows with this target count neither in the sum nor in the mean, which is 0 without any other. Default -100. */
  ignoreIndex?: number;
}

const LOSS: OptionNames<RowOptions> = { ignoreIndex: true };

/** Throws DS_ARGUMENT. */
export function ignoreIndexOf(op: string, { ignoreIndex = IGNORE_INDEX }: RowOptions): number {
  return requireInteger(`${op} ignoreIndex`, ignoreIndex, Number.MIN_SAFE_INTEGER);
}

/** Where means without any row are counted, see countEmptyMeans(). */
let emptyMeans: Tensor | null = null;

/**
 * From now on adds 1 to `into`, [1] f32, for each cross-entropy on its device of which no row counts; null: to nothing.
 * Returns what it replaces.
 */
export function countEmptyMeans(into: Tensor | null): Tensor | null {
  const before = emptyMeans;
  emptyMeans = into;
  return before;
}

/** What a sum over rows is divided by for their mean: how many count, and 1 where none does. Where that is, it is told. */
function divisorOfMean(target: View, ignoreIndex: number, dtype: DType): Tensor {
  return orOne(countRows(target, ignoreIndex, dtype));
}

/** `count` [1], with 1 in the place of 0: what a mean of nothing is divided by. Where that is, it is told. */
export function orOne(count: Tensor): Tensor {
  const isEmpty = Tensor.empty([1], 'bool', count.device);
  const zero = expanded(constant(0, count.dtype, count.device), [1]);
  kernels.compare({ a: count, b: zero, out: isEmpty, op: 'eq' });
  add(count, isEmpty);
  if (emptyMeans?.device === count.device) add(emptyMeans, isEmpty);
  return count;
}

/** sum += 1 where `flag` is set. */
function add(sum: Tensor, flag: Tensor): void {
  const one = Tensor.empty([1], sum.dtype, sum.device);
  kernels.copy({ in: flag, out: one });
  kernels.binary({ a: sum, b: one, out: sum, op: 'add', accumulate: false });
}

/** The number of rows that count, [1], on the target's device: the host does not wait for it. */
function countRows(target: View, ignoreIndex: number, dtype: DType): Tensor {
  const { device } = target.buffer;
  const counts = Tensor.empty(target.shape, 'bool', device);
  const ignored = expanded(constant(ignoreIndex, target.dtype, device), target.shape);
  kernels.compare({ a: target, b: ignored, out: counts, op: 'ne' });
  const ones = Tensor.empty(target.shape, dtype, device);
  kernels.copy({ in: counts, out: ones });
  const count = Tensor.empty([1], dtype, device);
  kernels.reduce({ in: ones, out: count, op: 'sum', accumulate: false });
  return count;
}

/** sum(losses) / count as a scalar. */
function average(losses: Tensor, count: Tensor): Tensor {
  const out = Tensor.empty([], losses.dtype, losses.device);
  const place = viewOf(out, [1]);
  kernels.reduce({ in: losses, out: place, op: 'sum', accumulate: false });
  kernels.binary({ a: place, b: count, out: place, op: 'div', accumulate: false });
  return out;
}

/** The gradient of each row's loss, [1]. */
function rowScale(grad: Tensor, count: Tensor): Tensor {
  const out = Tensor.emptyLike(count);
  kernels.binary({ a: viewOf(grad, [1]), b: count, out, op: 'div', accumulate: false });
  return out;
}

export function checkTarget(
  op: string,
  values: Tensor,
  lead: readonly number[],
  target: Tensor,
): void {
  requireIndex(op, values, target);
  if (numel(target.shape) !== numel(lead)) {
    throw shapeError(op, `a target for each of the rows [${lead.join(', ')}]`, describe(target));
  }
}

/** The logits as [N, V] rows with any row stride; copies only when no such view exists. */
function logitRows(logits: Tensor): View {
  const { shape, strides } = logits;
  const n = shape.length;
  let even = strides[n - 1] === 1;
  for (let d = 0; even && d < n - 2; ++d) {
    even = shape[d] === 1 || strides[d] === (strides[d + 1] as number) * (shape[d + 1] as number);
  }
  const rows = rowCount(shape);
  const columns = shape[n - 1] as number;
  if (n >= 2 && even) return viewOf(logits, [rows, columns], [strides[n - 2] as number, 1]);
  return viewOf(packed(logits), [rows, columns]);
}

/** crossEntropy() without class weights, smoothing and another reduction than the mean: one pass over the logits. */
export function meanCrossEntropy(logits: Tensor, target: Tensor, ignoreIndex: number): Tensor {
  const rows = logitRows(logits);
  const count = rows.shape[0] as number;
  const flat = packed(target);
  const at = viewOf(flat, [count]);
  const losses = Tensor.empty([count], statisticOf(logits.dtype), logits.device);
  const lse = Tensor.emptyLike(losses);
  kernels.crossEntropy({ logits: rows, target: at, losses, lse, ignoreIndex });
  const counted = divisorOfMean(at, ignoreIndex, losses.dtype);
  const out = average(losses, counted);
  record('cross_entropy', [logits], [out], [logits, flat, lse, counted], ([grad], sink) => {
    const scale = rowScale(grad as Tensor, counted);
    const source = logitRows(logits);
    sink.write(0, (dx, accumulate) =>
      overwriteOrAdd(dx, accumulate, (to) => {
        const dlogits = viewOf(to, source.shape);
        kernels.crossEntropyBackward({
          logits: source,
          target: at,
          lse,
          scale,
          dlogits,
          ignoreIndex,
        });
      }),
    );
  });
  return out;
}

/** Options of linearCrossEntropy(): what it keeps for the backward. */
export interface LinearCrossEntropyOptions extends RowOptions {
  /** Rows whose logits are computed at a time. Default: all, or 2048 when `recompute` is true. */
  chunkRows?: number;
  /** Keep no logits: the backward computes them again, chunk by chunk. Default false. */
  recompute?: boolean;
}

const HEAD: OptionNames<LinearCrossEntropyOptions> = {
  ...LOSS,
  ...{ chunkRows: true, recompute: true },
};

/** The rows [start, start + count) of the head: views that its kernels share. */
interface Chunk {
  start: number;
  x: View;
  target: View;
  losses: View;
  lse: View;
}

/** Head and loss over chunks of rows; one per call. */
class ChunkedHead {
  readonly losses: Tensor;
  readonly lse: Tensor;
  private readonly rows: View;
  private readonly count: number;

  constructor(
    x: Tensor,
    private readonly weight: Tensor,
    private readonly target: View,
    private readonly chunkRows: number,
    private readonly ignoreIndex: number,
  ) {
    this.rows = gemmRows(x);
    this.count = this.rows.shape[0] as number;
    this.losses = Tensor.empty([this.count], statisticOf(x.dtype), x.device);
    this.lse = Tensor.emptyLike(this.losses);
  }

  chunks(): Chunk[] {
    const out: Chunk[] = [];
    for (let start = 0; start < this.count; start += this.chunkRows) {
      const n = Math.min(this.chunkRows, this.count - start);
      const part = (of: View): View => viewOf(of, [n], [1], of.offset + start);
      const x = rowRange(this.rows, start, n);
      out.push({
        start,
        x,
        target: part(this.target),
        losses: part(this.losses),
        lse: part(this.lse),
      });
    }
    return out;
  }

  /** Memory for one chunk's logits, in rows a multiple of 64 elements apart. */
  buffer(): Tensor {
    const rows = Math.min(this.chunkRows, this.count);
    const step = paddedColumns(this.weight.shape[0] as number);
    return Tensor.empty([rows, step], this.weight.dtype, this.weight.device);
  }

  /** The vocabulary's columns of `memory`. */
  logits(chunk: Chunk, memory: Tensor): View {
    const shape = [chunk.x.shape[0] as number, this.weight.shape[0] as number];
    return viewOf(memory, shape, memory.strides);
  }

  /**
   * W with zero rows up to the padded width. A GEMM with 50257 columns runs six times slower than one with
   * 50304; the logits of the zero rows are 0, and nothing but these GEMMs reads or writes them.
   */
  paddedWeight(): Tensor {
    const { weight } = this;
    const [rows, columns] = weight.shape as [number, number];
    const padded = paddedColumns(rows);
    if (padded === rows) return weight.alias(weight.shape, weight.strides);
    const out = Tensor.empty([padded, columns], weight.dtype, weight.device);
    kernels.copy({ in: weight, out: viewOf(out, [rows, columns]) });
    const rest = viewOf(out, [padded - rows, columns], undefined, rows * columns);
    kernels.fill({ out: rest, value: 0 });
    return out;
  }

  /** logits = x W^T, padding columns included. */
  project(chunk: Chunk, memory: Tensor, padded: Tensor): void {
    kernels.matmul({
      a: chunk.x,
      b: padded,
      bias: null,
      aux: null,
      out: this.wide(chunk, memory),
      transA: false,
      transB: true,
      epilogue: 'none',
      accumulate: false,
    });
  }

  measure({ target, losses, lse }: Chunk, logits: View): void {
    kernels.crossEntropy({ logits, target, losses, lse, ignoreIndex: this.ignoreIndex });
  }

  /** Turns the logits into their gradient, in place. */
  differentiate({ target, lse }: Chunk, logits: View, scale: Tensor): void {
    const { ignoreIndex } = this;
    kernels.crossEntropyBackward({ logits, target, lse, scale, dlogits: logits, ignoreIndex });
  }

  /** dx[rows] (+)= dlogits W and dW (+)= dlogits^T x, from the gradient in `memory`. */
  propagate(chunk: Chunk, memory: Tensor, padded: Tensor, into: HeadGradients): void {
    const gemm = { bias: null, aux: null, transB: false, epilogue: 'none' } as const;
    const { dx, dweight, addX, addWeight } = into;
    if (dx) {
      const out = rowRange(dx, chunk.start, chunk.x.shape[0] as number);
      const a = this.wide(chunk, memory);
      kernels.matmul({ ...gemm, a, b: padded, out, transA: false, accumulate: addX });
    }
    if (dweight) {
      const a = this.wide(chunk, memory);
      const accumulate = addWeight || chunk.start > 0;
      kernels.matmul({ ...gemm, a, b: chunk.x, out: dweight, transA: true, accumulate });
    }
  }

  /**
   * Lets `body` write, or add to, W's gradient with the rows of paddedWeight(), and drops the rows behind it. GPT-2
   * 1558M's takes 2.0 ms of a GEMM with 50304 columns of the logits' gradient and 3.2 ms of one with 50257 (H200, 8192 rows).
   */
  withPaddedGradient(
    dweight: View | null,
    accumulate: boolean,
    body: (dweight: View | null) => void,
  ): void {
    const [rows, columns] = this.weight.shape as [number, number];
    const padded = paddedColumns(rows);
    if (!dweight || padded === rows || this.count === 0) {
      body(dweight);
      return;
    }
    const fresh = Tensor.empty([padded, columns], this.weight.dtype, this.weight.device);
    const part = viewOf(fresh, [rows, columns]);
    if (accumulate) kernels.copy({ in: dweight, out: part });
    body(fresh);
    kernels.copy({ in: part, out: dweight });
    fresh.dispose();
  }

  private wide(chunk: Chunk, memory: Tensor): View {
    return viewOf(memory, [chunk.x.shape[0] as number, memory.size(1)], memory.strides);
  }
}

interface HeadGradients {
  /** [N, C] */
  dx: View | null;
  /** [padded V, C] */
  dweight: View | null;
  addX: boolean;
  addWeight: boolean;
}

function rowRange(matrix: View, start: number, count: number): View {
  const [, columns] = matrix.shape as [number, number];
  const step = matrix.strides[0] as number;
  return viewOf(matrix, [count, columns], [step, 1], matrix.offset + start * step);
}

/**
 * crossEntropy(linear(x, weight), target) without the logits as a tensor: computed in row chunks,
 * kept and turned into their gradient in place, or computed again in the backward. x [.., C],
 * weight [V, C], target [..]. Throws DS_SHAPE, DS_DTYPE, DS_DEVICE, DS_INDEX (CPU).
 */
export function linearCrossEntropy(
  x: Tensor,
  weight: Tensor,
  target: Tensor,
  options: LinearCrossEntropyOptions = {},
): Tensor {
  const read = readOptions('linear_cross_entropy', options, HEAD);
  const { recompute = false } = read;
  const ignoreIndex = ignoreIndexOf('linear_cross_entropy', read);
  requireInput('linear_cross_entropy', x, weight);
  checkTarget('linear_cross_entropy', x, x.shape.slice(0, -1), target);
  if (weight.ndim !== 2 || weight.shape[1] !== x.shape[x.ndim - 1]) {
    throw shapeError('linear_cross_entropy', `a weight [V, ${x.size(-1)}]`, describe(weight));
  }
  if (!isContiguous(weight)) return linearCrossEntropy(x, contiguous(weight), target, options);
  const total = rowCount(x.shape);
  const rows = read.chunkRows ?? Math.max(1, recompute ? 2048 : total);
  const chunkRows = requireInteger('linear_cross_entropy chunkRows', rows, 1);
  const source = packed(x);
  const flat = packed(target);
  const at = viewOf(flat, [total]);
  const head = new ChunkedHead(source, weight, at, chunkRows, ignoreIndex);
  const chunks = head.chunks();
  const keep = !recompute && isGradEnabled() && (x.requiresGrad || weight.requiresGrad);
  const kept: Tensor[] = [];
  const shared = keep ? null : head.buffer();
  const padded = head.paddedWeight();
  for (const chunk of chunks) {
    const memory = shared ?? head.buffer();
    if (keep) kept.push(memory);
    head.project(chunk, memory, padded);
    head.measure(chunk, head.logits(chunk, memory));
  }
  padded.dispose();
  shared?.dispose();
  const counted = divisorOfMean(at, ignoreIndex, head.losses.dtype);
  const out = average(head.losses, counted);
  const saved = [source, weight, flat, head.lse, counted, ...kept];
  record('linear_cross_entropy', [x, weight], [out], saved, ([grad], sink) => {
    const scale = rowScale(grad as Tensor, counted);
    const scratch = recompute ? head.buffer() : null;
    writeTogether(sink, [0, 1], ([dx, dw], [addX = false, addWeight = false]) => {
      const rows = dx ? viewOf(dx, [total, x.size(-1)]) : null;
      if (dw && total === 0 && !addWeight) kernels.fill({ out: dw, value: 0 });
      const padded = head.paddedWeight();
      head.withPaddedGradient(dw ?? null, addWeight, (dweight) => {
        const into = { dx: rows, dweight, addX, addWeight };
        chunks.forEach((chunk, i) => {
          const memory = scratch ?? (kept[i] as Tensor);
          if (scratch) recomputing(() => head.project(chunk, memory, padded));
          head.differentiate(chunk, head.logits(chunk, memory), scale);
          head.propagate(chunk, memory, padded, into);
        });
      });
    });
  });
  return out;
}
