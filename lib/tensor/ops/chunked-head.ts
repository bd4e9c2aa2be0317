// The vocabulary head and its loss over chunks of rows: products and kernels of one chunk.

import { statisticOf } from '../../runtime/dtype.js';
import * as kernels from '../../runtime/kernels.generated.js';
import { leading, required } from '../../runtime/required.js';
import type { View } from '../../runtime/view.js';
import { Tensor } from '../tensor.js';
import { type ClassShare, reduceRows } from './class-share.js';
import { paddedColumns } from './linear.js';
import { allClasses, allocateCorrect, allocateSums, earlyDivisor, type RowRules } from './loss.js';
import type { RowSums } from './loss-report.js';
import { gemm, gemmRows, plainOperand, transposeOperand } from './matmul.js';
import { viewOf } from './shapes.js';

/** Rows [start, start + count) of the head: views that its kernels share. */
export interface Chunk {
  start: number;
  x: View;
  target: View;
  losses: View;
  lse: View;
  /** Null without a report. */
  correct: View | null;
  /** Null without a TokenReport. */
  sums: { expected: View; total: View } | null;
}

/** Reduction rules of rows, and the classes of this rank. */
export interface HeadRowRules extends RowRules {
  /** The classes of this rank; null if this rank has all classes. */
  readonly share: ClassShare | null;
}

/** Head and loss over chunks of rows; one per call. */
export class ChunkedHead {
  readonly losses: Tensor;
  readonly lse: Tensor;
  /** Whether each row is correct, if a report counts. */
  readonly correct: Tensor | null;
  /** Sums over the logits, if a TokenReport counts. */
  readonly sums: RowSums | null;
  private readonly rows: View;
  private readonly count: number;

  constructor(
    x: Tensor,
    private readonly weight: Tensor,
    readonly target: View,
    private readonly chunkRows: number,
    private readonly rules: HeadRowRules,
  ) {
    this.rows = gemmRows(x);
    this.count = required(this.rows.shape[0]);
    this.losses = Tensor.empty([this.count], statisticOf(x.dtype), x.device);
    this.lse = Tensor.emptyLike(this.losses);
    this.correct = allocateCorrect(rules, this.count, x.device);
    this.sums = allocateSums(rules, this.correct, this.lse);
  }

  /** Returns the divisor of the sum of the losses, [1]. */
  divisor(): Tensor {
    return earlyDivisor(this.rules, this);
  }

  chunks(): Chunk[] {
    const out: Chunk[] = [];
    for (let start = 0; start < this.count; start += this.chunkRows) {
      const n = Math.min(this.chunkRows, this.count - start);
      const slice = (of: View): View => viewOf(of, [n], [1], of.offset + start);
      const x = rowRange(this.rows, start, n);
      out.push({
        start,
        x,
        target: slice(this.target),
        losses: slice(this.losses),
        lse: slice(this.lse),
        correct: this.correct && slice(this.correct),
        sums: this.sums && {
          expected: slice(this.sums.expected),
          total: slice(this.sums.total),
        },
      });
    }
    return out;
  }

  /** Returns memory for one chunk's logits; the row stride is a multiple of 64 elements. */
  buffer(): Tensor {
    const rows = Math.min(this.chunkRows, this.count);
    const step = paddedColumns(required(this.weight.shape[0]));
    return Tensor.empty([rows, step], this.weight.dtype, this.weight.device);
  }

  /** Returns the columns of `memory` that belong to classes, without the padding. */
  logits(chunk: Chunk, memory: Tensor): View {
    const shape = [required(chunk.x.shape[0]), required(this.weight.shape[0])];
    return viewOf(memory, shape, memory.strides);
  }

  /**
   * Returns W with zero rows up to the padded width. A GEMM of 50257 columns runs six times slower
   * than with 50304. The logits of the zero rows are 0, and only these GEMMs read or write them.
   */
  paddedWeight(): Tensor {
    const { weight } = this;
    const [rows, columns] = leading(weight.shape, 2);
    const padded = paddedColumns(rows);
    if (padded === rows) return weight.alias(weight.shape, weight.strides);
    const out = Tensor.empty([padded, columns], weight.dtype, weight.device);
    kernels.copy({ in: weight, out: viewOf(out, [rows, columns]) });
    const padding = viewOf(out, [padded - rows, columns], undefined, rows * columns);
    kernels.fill({ out: padding, value: 0 });
    return out;
  }

  /** Writes logits = x W^T to `memory`, including the padding columns. */
  project(chunk: Chunk, memory: Tensor, padded: Tensor): void {
    kernels.matmul({
      a: chunk.x,
      b: padded,
      bias: null,
      aux: null,
      out: this.paddedLogits(chunk, memory),
      transA: false,
      transB: true,
      epilogue: 'none',
      accumulate: false,
    });
  }

  computeLosses({ target, losses, lse, correct, sums }: Chunk, logits: View): void {
    const { smoothing, ignoreIndex, share } = this.rules;
    const { first, classes } = share ?? allClasses;
    const settings = { smoothing, ignoreIndex, first, classes };
    kernels.crossEntropy({ logits, target, losses, lse, correct, ...settings });
    if (share) reduceRows({ logits, target, losses, lse, correct }, share, ignoreIndex);
    if (!sums) return;
    kernels.logitSums({ logits, target, lse, ...sums, ignoreIndex });
    for (const view of share ? [sums.expected, sums.total] : []) share?.combine(view, 'sum');
  }

  /** Turns the logits into their gradient, in place. */
  differentiate({ target, lse }: Chunk, logits: View, scale: View): void {
    const { smoothing, ignoreIndex, share } = this.rules;
    const rows = { logits, target, lse, scale, dlogits: logits };
    const { first, classes } = share ?? allClasses;
    kernels.crossEntropyBackward({ ...rows, smoothing, ignoreIndex, first, classes });
  }

  /** Computes dx[rows] (+)= dlogits W and dW (+)= dlogits^T x from the gradient in `memory`. */
  propagate(chunk: Chunk, memory: Tensor, padded: Tensor, into: HeadGradients): void {
    const { dx, dweight, addX, addWeight } = into;
    if (dx) {
      const out = rowRange(dx, chunk.start, required(chunk.x.shape[0]));
      gemm(plainOperand(this.paddedLogits(chunk, memory)), plainOperand(padded), out, addX);
    }
    if (dweight) {
      const accumulate = addWeight || chunk.start > 0;
      gemm(
        transposeOperand(plainOperand(this.paddedLogits(chunk, memory))),
        plainOperand(chunk.x),
        dweight,
        accumulate,
      );
    }
  }

  /**
   * Lets `body` write, or add to, W's gradient with the rows of paddedWeight(), then drops the
   * padding rows. For GPT-2 1558M a GEMM with 50304 columns of the logits' gradient takes 2.0 ms,
   * with 50257 columns 3.2 ms (H200, 8192 rows).
   */
  withPaddedGradient(
    dweight: View | null,
    accumulate: boolean,
    body: (dweight: View | null) => void,
  ): void {
    const [rows, columns] = leading(this.weight.shape, 2);
    const padded = paddedColumns(rows);
    if (!dweight || padded === rows || this.count === 0) {
      body(dweight);
      return;
    }
    const temporary = Tensor.empty([padded, columns], this.weight.dtype, this.weight.device);
    const slice = viewOf(temporary, [rows, columns]);
    if (accumulate) kernels.copy({ in: dweight, out: slice });
    body(temporary);
    kernels.copy({ in: slice, out: dweight });
    temporary.dispose();
  }

  private paddedLogits(chunk: Chunk, memory: Tensor): View {
    return viewOf(memory, [required(chunk.x.shape[0]), memory.size(1)], memory.strides);
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

/** Returns `count` rows of a matrix from `start` on, as a view. */
export function rowRange(matrix: View, start: number, count: number): View {
  const [, columns] = leading(matrix.shape, 2);
  const step = required(matrix.strides[0]);
  return viewOf(matrix, [count, columns], [step, 1], matrix.offset + start * step);
}
