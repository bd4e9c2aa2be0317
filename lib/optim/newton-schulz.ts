// Newton-Schulz iteration: moves all singular values of a matrix towards 1, by matrix products
// only. Sources: Jordan et al. 2024, kellerjordan.github.io/posts/muon; DeepSpeed
// runtime/zero/muon/original_muon.py.

import { leading, required } from '../runtime/required.js';
import { contiguousStrides, type View } from '../runtime/view.js';
import type { Tensor } from '../tensor/index.js';
import type { UpdateKernels } from './update-kernels.js';

/** Names of the methods. */
export const NEWTON_SCHULZ_METHODS = ['gram', 'standard'] as const;

/**
 * How the iteration multiplies. Both methods compute the same polynomial.
 *
 * - "standard" multiplies the whole matrix in every step.
 * - "gram" iterates on the Gram matrix of the shorter side. It multiplies the whole matrix only at
 *   the end, and once after two steps, where it restarts for stability. For matrices that are far
 *   from square, it needs fewer FLOPs.
 *
 * Square matrices always use "standard".
 */
export type NewtonSchulzMethod = (typeof NEWTON_SCHULZ_METHODS)[number];

/** Coefficients of X, (X X') X and (X X')^2 X in a step. */
const [A, B, C] = [3.4445, -4.775, 2.0315] as const;

const STEPS = 5;

/** Number of the step before which "gram" restarts. */
const RESTART = 2;

/** Sizes of a matrix to orthogonalize, and the method. */
export interface Orthogonalization {
  readonly rows: number;
  readonly columns: number;
  readonly method: NewtonSchulzMethod;
}

/**
 * Returns the number of elements in the workspace of a matrix. The matrix itself is part of the
 * workspace.
 */
export function workspaceSize({ rows, columns, method }: Orthogonalization): number {
  const side = Math.min(rows, columns);
  return 2 * rows * columns + (isGram(rows, columns, method) ? 5 : 3) * side * side;
}

const isGram = (rows: number, columns: number, method: NewtonSchulzMethod): boolean =>
  method === 'gram' && rows !== columns;

/**
 * Returns the position of the matrix in the workspace. Before orthogonalize(), the caller writes
 * the matrix there, with a Frobenius norm of at most 1.
 */
export function inputMatrix(workspace: Tensor, rows: number, columns: number): View {
  return matrixAt(workspace, 0, rows, columns);
}

function matrixAt(workspace: Tensor, at: number, rows: number, columns: number): View {
  const { buffer, dtype, offset } = workspace;
  const shape = [rows, columns];
  return { buffer, dtype, offset: offset + at, shape, strides: contiguousStrides(shape) };
}

/**
 * Runs five steps on the matrix of inputMatrix(). Returns the result, at another position in the
 * workspace.
 */
export function orthogonalize(
  workspace: Tensor,
  what: Orthogonalization,
  kernels: UpdateKernels,
): View {
  const iteration = new Iteration(workspace, what, kernels);
  return isGram(what.rows, what.columns, what.method) ? iteration.gram() : iteration.standard();
}

/**
 * One iteration on a matrix X [rows, columns]. Gram matrices are square, with the size of the
 * shorter side.
 */
class Iteration {
  private x: View;
  private y: View;
  private readonly squares: View[];
  private readonly tall: boolean;

  constructor(
    workspace: Tensor,
    { rows, columns, method }: Orthogonalization,
    private readonly kernels: UpdateKernels,
  ) {
    const side = Math.min(rows, columns);
    const size = rows * columns;
    this.tall = rows > columns;
    this.x = matrixAt(workspace, 0, rows, columns);
    this.y = matrixAt(workspace, size, rows, columns);
    this.squares = Array.from({ length: isGram(rows, columns, method) ? 5 : 3 }, (_, i) =>
      matrixAt(workspace, 2 * size + i * side * side, side, side),
    );
  }

  standard(): View {
    const [gram, factor, scaled] = leading(this.squares, 3);
    for (let step = 0; step < STEPS; ++step) {
      this.computeGram(gram);
      this.computePolynomial(gram, factor, scaled);
      this.scale(this.x, this.y, A);
      this.multiplyX(factor, true);
    }
    return this.x;
  }

  gram(): View {
    let [gram, product, spare, other, factor] = leading(this.squares, 5);
    this.computeGram(gram);
    for (let step = 0; step < STEPS; ++step) {
      if (step === RESTART) {
        this.multiplyX(product, false);
        this.computeGram(gram);
      }
      this.computePolynomial(gram, factor, spare);
      if (step === 0 || step === RESTART) {
        this.scale(factor, product, 1);
        this.addToDiagonal(product, A);
      } else {
        this.addScaled(factor, product, spare);
        [product, spare] = [spare, product];
      }
      if (step === STEPS - 1 || step + 1 === RESTART) continue;
      this.addScaled(factor, gram, spare);
      this.addScaled(factor, spare, other);
      [gram, other] = [other, gram];
    }
    this.multiplyX(product, false);
    return this.x;
  }

  /** Computes out = X X', or X' X if X has more rows than columns. */
  private computeGram(out: View): void {
    this.product({ a: this.x, b: this.x, out, transA: this.tall, transB: !this.tall });
  }

  /** Computes out = B gram + C gram gram; overwrites `scaled`. */
  private computePolynomial(gram: View, out: View, scaled: View): void {
    this.scale(gram, scaled, C);
    this.scale(gram, out, B);
    this.product({ a: scaled, b: gram, out, accumulate: true });
  }

  /** Computes out = A of + factor of. */
  private addScaled(factor: View, of: View, out: View): void {
    this.scale(of, out, A);
    this.product({ a: factor, b: of, out, accumulate: true });
  }

  /**
   * Computes X = factor X, or X = X factor' if X has more rows than columns. Factors are symmetric.
   * With `accumulate`, adds the product to Y first.
   */
  private multiplyX(factor: View, accumulate: boolean): void {
    const { x, y: out } = this;
    if (this.tall) this.product({ a: x, b: factor, out, transB: true, accumulate });
    else this.product({ a: factor, b: x, out, accumulate });
    [this.x, this.y] = [out, x];
  }

  private addToDiagonal(square: View, value: number): void {
    const side = required(square.shape[0]);
    const diagonal = { ...square, shape: [side], strides: [side + 1] };
    this.kernels.scale({
      in: diagonal,
      out: diagonal,
      scale: 1,
      shift: value,
      accumulate: false,
    });
  }

  private scale(from: View, out: View, factor: number): void {
    this.kernels.scale({ in: from, out, scale: factor, shift: 0, accumulate: false });
  }

  private product(args: {
    a: View;
    b: View;
    out: View;
    transA?: boolean;
    transB?: boolean;
    accumulate?: boolean;
  }): void {
    const { transA = false, transB = false, accumulate = false } = args;
    const plain = { bias: null, aux: null, epilogue: 'none' } as const;
    this.kernels.matmul({ ...args, ...plain, transA, transB, accumulate });
  }
}
