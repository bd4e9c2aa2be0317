// The vocabulary head fused with its cross-entropy: the logits are never a tensor, and only a chunk
// of them may exist at a time.

import { type DType, dtypeSize } from '../../runtime/dtype.js';
import * as kernels from '../../runtime/kernels.generated.js';
import { namesOf, readOptions } from '../../runtime/options.js';
import { requireInteger } from '../../runtime/require-number.js';
import { leading, required } from '../../runtime/required.js';
import { describe, isContiguous, type View } from '../../runtime/view.js';
import { scope } from '../scope.js';
import { type GradSink, isGradEnabled, record, runRecomputation } from '../tape.js';
import { Tensor } from '../tensor.js';
import { type Chunk, ChunkedHead, type HeadRowRules, rowRange } from './chunked-head.js';
import type { ClassShare } from './class-share.js';
import { embedding } from './indexing.js';
import { paddedColumns } from './linear.js';
import {
  average,
  checkTarget,
  divisorOf,
  type RowLossOptions,
  reportSums,
  rowRulesOf,
  rowScale,
} from './loss.js';
import { type LossReduction, reductionOf } from './pointwise-losses.js';
import {
  expandView,
  requireInput,
  rowCount,
  shapeError,
  toRowMajor,
  viewOf,
  writeTogether,
} from './shapes.js';
import { contiguous, reshape } from './views.js';

/** Options of linearCrossEntropy(). */
export interface LinearCrossEntropyOptions extends RowLossOptions {
  /** How the losses of elements become the result. Default: "mean". */
  reduction?: Exclude<LossReduction, 'none'>;
  /**
   * Rows per chunk of logits. Default: all rows if all logits are kept, else the largest power of
   * two with at most 2^27 logits (256 MiB in 16 bits), and at most 2048. With at least as many rows
   * as classes: at most 2^28 logits.
   */
  chunkRows?: number;
  /**
   * Keep no logits. With a trained weight, the backward recomputes them chunk by chunk; with a
   * frozen one, the forward computes the gradient of x. With at least as many rows as classes, and
   * not in f16, the forward computes the gradient of a trained weight too. Default: true for a
   * vocabulary above 65,536 with more than 2^30 logits in all.
   */
  recompute?: boolean;
  /**
   * Whether the forward computes the gradient of a trained weight if it keeps no logits; never in
   * f16. Default: with at least as many rows as classes.
   */
  earlyWeight?: boolean;
  /**
   * Skip ignored rows in the products. Worthwhile if many rows are ignored, as in training on
   * answers only. The host waits for the targets. Default: false.
   */
  skipIgnored?: boolean;
  /**
   * Vocabulary parallelism: the classes that `weight` has of all classes. The gradient of x is then
   * a partial sum over these classes. See parallel.VocabularyHead.
   */
  classShare?: ClassShare | null;
}

/** Logits of one chunk. */
const CHUNK_LOGITS = 2 ** 27;
/** Largest number of rows per chunk: more rows do not make the products faster. */
const CHUNK_ROWS = 2048;
/**
 * Largest size of kept logits in bytes. With a trained weight, the backward would need another
 * product to recompute them; with a frozen one, chunks only save memory.
 */
const KEPT_BYTES = { trained: 2 ** 32, frozen: 2 ** 31 };
/** Vocabularies up to this size always keep their logits. */
const SMALL_VOCABULARY = 2 ** 16;

/**
 * @internal Returns whether logits of `size` bytes each are too many for a loss to keep them by
 * default.
 */
export function exceedsKeptLogits(
  [rows, columns]: readonly [number, number],
  size: number,
  isTrained: boolean,
): boolean {
  const maxBytes = KEPT_BYTES[isTrained ? 'trained' : 'frozen'];
  return columns > SMALL_VOCABULARY && rows * columns * size > maxBytes;
}

/** @internal Returns the rows per chunk for `rows` rows of `columns` logits each. */
export function chunkRowsFor(columns: number, rows = 0): number {
  const maxLogits = rows >= columns ? 2 * CHUNK_LOGITS : CHUNK_LOGITS;
  const fitting = 2 ** Math.floor(Math.log2(maxLogits / columns));
  return Math.max(1, Math.min(fitting, CHUNK_ROWS));
}

/**
 * @internal Returns whether the forward of [rows, columns] logits that are not kept computes the
 * gradient of a trained weight. That gradient is then no larger than x, and one product of four is
 * saved. Sums over all rows may leave the range of f16.
 */
export const isEarlyWeight = ([rows, columns]: readonly [number, number], dtype: DType): boolean =>
  rows >= columns && dtype !== 'f16';

/** How a call keeps its logits for the backward. */
interface LogitsPlan {
  /** Returns memory for the logits of the next chunk. */
  allocate(): Tensor;
  /** Receives the logits in `memory` after their losses are computed; `weight` is padded. */
  onLosses(chunk: Chunk, memory: Tensor, weight: Tensor): void;
  /** Releases memory of the forward; returns the tensors that the backward needs. */
  close(): Tensor[];
  /** `grad` is the gradient of the loss, `scale` that of each row's loss, [1] each. */
  backward(scale: Tensor, sink: GradSink, grad: Tensor): void;
}

/** Computes the gradients of x and W from the gradients of the logits, chunk by chunk. */
function propagateAll(
  head: ChunkedHead,
  x: Tensor,
  sink: GradSink,
  gradientOf: (chunk: Chunk, i: number, weight: Tensor) => Tensor,
): void {
  const total = rowCount(x.shape);
  writeTogether(sink, [0, 1], ([dx, dw], [addX = false, addWeight = false]) => {
    const rows = dx ? viewOf(dx, [total, x.size(-1)]) : null;
    if (dw && total === 0 && !addWeight) kernels.fill({ out: dw, value: 0 });
    const weight = head.paddedWeight();
    head.withPaddedGradient(dw ?? null, addWeight, (dweight) => {
      const into = { dx: rows, dweight, addX, addWeight };
      head.chunks().forEach((chunk, i) => {
        head.propagate(chunk, gradientOf(chunk, i, weight), weight, into);
      });
    });
  });
}

/** Keeps all logits; the backward turns them into their gradient in place. */
class KeptLogits implements LogitsPlan {
  private readonly kept: Tensor[] = [];

  constructor(
    private readonly head: ChunkedHead,
    private readonly x: Tensor,
  ) {}

  allocate(): Tensor {
    const memory = this.head.buffer();
    this.kept.push(memory);
    return memory;
  }

  onLosses(): void {}

  close(): Tensor[] {
    return this.kept;
  }

  backward(scale: Tensor, sink: GradSink): void {
    const { head, kept } = this;
    propagateAll(head, this.x, sink, (chunk, i) => {
      const memory = required(kept[i]);
      head.differentiate(chunk, head.logits(chunk, memory), scale);
      return memory;
    });
  }
}

/** Keeps no logits: the backward recomputes the logits of each chunk. */
class RecomputedLogits implements LogitsPlan {
  private readonly shared: Tensor;

  constructor(
    private readonly head: ChunkedHead,
    private readonly x: Tensor,
  ) {
    this.shared = head.buffer();
  }

  allocate(): Tensor {
    return this.shared;
  }

  onLosses(): void {}

  close(): Tensor[] {
    this.shared.dispose();
    return [];
  }

  backward(scale: Tensor, sink: GradSink): void {
    const { head } = this;
    const memory = head.buffer();
    propagateAll(head, this.x, sink, (chunk, _, weight) => {
      runRecomputation(() => head.project(chunk, memory, weight));
      head.differentiate(chunk, head.logits(chunk, memory), scale);
      return memory;
    });
  }
}

/** Factor of early gradients, a power of two: small gradients do not underflow in f16. */
const EARLY_SCALE = 256;
/** Elements that are scaled at a time, in the statistics' dtype. */
const SCALED_ELEMENTS = 2 ** 25;

/**
 * The forward computes the gradients of x, and of a trained weight, from the logits of each chunk,
 * and the backward scales them. Needs as many products as kept logits, and the memory of one chunk.
 * Source: Hsu et al. 2024 (Liger Kernel).
 */
class EarlyGradients implements LogitsPlan {
  private readonly shared: Tensor;
  private readonly scale: Tensor;
  /** EARLY_SCALE times x's gradient, of x's shape and dtype: see the constructor. */
  private readonly xGrad: Tensor;
  /** The same of the padded weight; null for a frozen one. */
  private readonly weightGrad: Tensor | null;

  /**
   * With a trained weight, these are gradients of the loss. Its own gradient is usually a power of
   * two; then logits computed again would give the same bits. With a frozen weight, they are
   * gradients of the sum of the losses, which do not underflow in f16.
   */
  constructor(
    private readonly head: ChunkedHead,
    x: Tensor,
    private readonly weight: Tensor,
  ) {
    const { dtype, device } = x;
    const [classes, channels] = leading(weight.shape, 2);
    this.shared = head.buffer();
    this.xGrad = Tensor.empty([rowCount(x.shape), channels], dtype, device);
    this.weightGrad = weight.requiresGrad
      ? Tensor.empty([paddedColumns(classes), channels], dtype, device)
      : null;
    this.scale = Tensor.empty([1], head.losses.dtype, device);
    kernels.fill({ out: this.scale, value: EARLY_SCALE });
    if (!this.weightGrad) return;
    const divisor = head.divisor();
    const { scale } = this;
    kernels.binary({ a: scale, b: divisor, out: scale, op: 'div', accumulate: false });
    divisor.dispose();
  }

  allocate(): Tensor {
    return this.shared;
  }

  onLosses(chunk: Chunk, memory: Tensor, weight: Tensor): void {
    const { head, xGrad, weightGrad, scale } = this;
    head.differentiate(chunk, head.logits(chunk, memory), scale);
    head.propagate(chunk, memory, weight, {
      dx: xGrad,
      dweight: weightGrad,
      addX: false,
      addWeight: false,
    });
  }

  close(): Tensor[] {
    this.shared.dispose();
    this.scale.dispose();
    return this.weightGrad ? [this.xGrad, this.weightGrad] : [this.xGrad];
  }

  backward(scale: Tensor, sink: GradSink, grad: Tensor): void {
    const { xGrad, weightGrad, weight } = this;
    const down = Tensor.emptyLike(scale);
    const factor = weightGrad ? viewOf(grad, [1]) : scale;
    kernels.scale({ in: factor, out: down, scale: 1 / EARLY_SCALE, shift: 0, accumulate: false });
    sink.write(0, (dx, accumulate) =>
      writeScaled(xGrad, down, viewOf(dx, xGrad.shape), accumulate),
    );
    if (weightGrad) {
      const values = viewOf(weightGrad, weight.shape);
      sink.write(1, (dweight, accumulate) => writeScaled(values, down, dweight, accumulate));
    }
    down.dispose();
  }
}

/**
 * out (+)= values * factor, rounded once; matrices with contiguous rows. `factor` [1] has the
 * statistics' dtype of the values.
 */
function writeScaled(values: View, factor: Tensor, out: View, accumulate: boolean): void {
  const { dtype, device } = factor;
  const [rows, columns] = leading(values.shape, 2);
  const step = Math.max(1, Math.floor(SCALED_ELEMENTS / columns));
  for (let start = 0; start < rows; start += step) {
    const count = Math.min(step, rows - start);
    const part = rowRange(out, start, count);
    const wide = Tensor.empty([count, columns], dtype, device);
    kernels.copy({ in: rowRange(values, start, count), out: wide });
    const b = expandView(factor, wide.shape);
    kernels.binary({ a: wide, b, out: wide, op: 'mul', accumulate: false });
    if (accumulate) {
      const sum = Tensor.empty([count, columns], dtype, device);
      kernels.copy({ in: part, out: sum });
      kernels.binary({ a: sum, b: wide, out: wide, op: 'add', accumulate: false });
      sum.dispose();
    }
    kernels.copy({ in: wide, out: part });
    wide.dispose();
  }
}

/** Selects how a call keeps the logits, and the rows per chunk. */
function choosePlan(
  x: Tensor,
  weight: Tensor,
  { chunkRows, recompute, earlyWeight }: LinearCrossEntropyOptions,
): Pick<HeadRules, 'Kind' | 'rows'> {
  const total = rowCount(x.shape);
  const columns = paddedColumns(required(weight.shape[0]));
  const isLarge = exceedsKeptLogits([total, columns], dtypeSize(x.dtype), weight.requiresGrad);
  const drops = recompute ?? isLarge;
  const learns = isGradEnabled() && (x.requiresGrad || weight.requiresGrad);
  const keeps = learns && !drops;
  const all = keeps || !(drops || isLarge);
  const standard = all ? Math.max(1, total) : chunkRowsFor(columns, total);
  const rows = requireInteger('linear_cross_entropy chunkRows', chunkRows ?? standard, 1);
  const isSmall = isEarlyWeight([total, columns], x.dtype);
  const learnsEarly = earlyWeight ?? isSmall;
  const isEarly = !weight.requiresGrad || (x.requiresGrad && learnsEarly && x.dtype !== 'f16');
  const ofDropped = learns && drops && isEarly ? EarlyGradients : RecomputedLogits;
  return { Kind: keeps ? KeptLogits : ofDropped, rows };
}

/**
 * Returns crossEntropy(linear(x, weight), target) without the logits as a tensor. x [.., C], weight
 * [V, C] of x's dtype, target [..] i32 or i64. Returns a scalar, f32 (f64 for f64). Without kept
 * logits it needs chunkRows V elements in both passes, and V C more if V is not a multiple of 64.
 * Between the passes it needs N C more with a frozen weight (N rows), (N + V) C with early
 * gradients of a trained one. Throws DS_SHAPE, DS_DTYPE, DS_DEVICE, DS_ARGUMENT, DS_INDEX (CPU; NaN
 * on a GPU).
 */
export function linearCrossEntropy(
  x: Tensor,
  weight: Tensor,
  target: Tensor,
  options: LinearCrossEntropyOptions = {},
): Tensor {
  const op = 'linear_cross_entropy';
  const {
    skipIgnored = false,
    classShare = null,
    ...read
  } = readOptions(op, options, namesOf.LinearCrossEntropyOptions);
  requireInput(op, x, weight);
  checkTarget(op, x, x.shape.slice(0, -1), target);
  if (weight.ndim !== 2 || weight.shape[1] !== x.shape[x.ndim - 1]) {
    throw shapeError(op, `a weight [V, ${x.size(-1)}]`, describe(weight));
  }
  reductionOf(op, read.reduction, ['mean', 'sum']);
  const rules = { ...rowRulesOf(op, read, x.device), share: classShare };
  const contiguousWeight = isContiguous(weight) ? weight : contiguous(weight);
  if (!skipIgnored)
    return headLoss(x, contiguousWeight, target, {
      ...choosePlan(x, contiguousWeight, read),
      rules,
    });
  return scope(() => {
    const [countedX, countedTarget] = selectCountedRows(x, target, rules.ignoreIndex);
    return headLoss(countedX, contiguousWeight, countedTarget, {
      ...choosePlan(countedX, contiguousWeight, read),
      rules,
    });
  });
}

/** Returns the rows of x that count, and their targets. The host waits for the targets. */
function selectCountedRows(x: Tensor, target: Tensor, ignoreIndex: number): [Tensor, Tensor] {
  const targets = target.toArray();
  const at = targets.flatMap((value, row) => (value === ignoreIndex ? [] : [row]));
  if (at.length === targets.length) return [x, target];
  const { device } = x;
  const index = Tensor.from(Int32Array.from(at), { device });
  const countedTargets = at.map((row) => required(targets[row]));
  const rows = embedding(reshape(x, [targets.length, x.size(-1)]), index);
  return [rows, Tensor.from(countedTargets, { dtype: target.dtype, device })];
}

interface HeadRules {
  Kind: new (head: ChunkedHead, x: Tensor, weight: Tensor) => LogitsPlan;
  rows: number;
  rules: HeadRowRules;
}

function headLoss(
  x: Tensor,
  weight: Tensor,
  target: Tensor,
  { Kind, rows, rules }: HeadRules,
): Tensor {
  const source = toRowMajor(x);
  const flat = toRowMajor(target);
  const at = viewOf(flat, [rowCount(x.shape)]);
  const head = new ChunkedHead(source, weight, at, rows, rules);
  const plan = new Kind(head, source, weight);
  const padded = head.paddedWeight();
  for (const chunk of head.chunks()) {
    const memory = plan.allocate();
    head.project(chunk, memory, padded);
    head.computeLosses(chunk, head.logits(chunk, memory));
    plan.onLosses(chunk, memory, padded);
  }
  padded.dispose();
  const savedLogits = plan.close();
  const classes = rules.share?.classes ?? required(weight.shape[0]);
  reportSums(rules, { ...head, classes });
  const divisor = divisorOf(rules, head);
  const out = average(head.losses, divisor);
  const saved = [source, weight, flat, head.lse, divisor, ...savedLogits];
  record('linear_cross_entropy', [x, weight], [out], saved, ([grad], sink) =>
    plan.backward(rowScale(grad, divisor), sink, grad),
  );
  return out;
}
