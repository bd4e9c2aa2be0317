// Selective recomputation: what is cheap to make again is not saved; an op saves how it was made.
import { isGradEnabled, noGrad, recomputing, type Saved } from './tape.js';
import type { Tensor } from './tensor.js';

/** An op that gives the same bits whenever it is run on the same inputs. */
export interface RecomputableOp {
  (...inputs: Tensor[]): Tensor;
  /** Starts it beside what computes; what it returns waits for the result. Default: it cannot. */
  begin?(...inputs: Tensor[]): () => Tensor;
}

interface Recipe {
  readonly op: RecomputableOp;
  readonly inputs: readonly Tensor[];
}

const recipes = new WeakMap<Tensor, Recipe>();

/**
 * Marks `value` as what op(...inputs) gives again, bit for bit: matrix products that read it keep
 * `inputs` for their backward and not the value, and make it again there. Worth it where `inputs`
 * are kept anyway and `op` is element-wise or a norm. `op` draws no random numbers; parameters that
 * it reads besides must keep their values until the backward. Returns `value`.
 * Source: Korthikanti et al. 2022, applied to norms and activations.
 */
export function recomputable(value: Tensor, op: RecomputableOp, ...inputs: Tensor[]): Tensor {
  if (isGradEnabled()) recipes.set(value, { op, inputs });
  return value;
}

/** op(...inputs), marked as recomputable. */
export function recomputed(op: RecomputableOp, ...inputs: Tensor[]): Tensor {
  return recomputable(op(...inputs), op, ...inputs);
}

// Functions of their own, so that a recipe's closure does not hold the tensor that it replaces.
const itself = (tensor: Tensor) => (): Tensor => tensor;
const again = (op: RecomputableOp, inputs: readonly SavedTensor[]) => (): Tensor =>
  recomputing(() => op(...inputs.map((input) => input.value())));
const started = (op: RecomputableOp, inputs: readonly SavedTensor[]) =>
  op.begin
    ? () => recomputing(() => op.begin?.(...inputs.map((input) => input.value())) as () => Tensor)
    : null;

/** A tensor saved for a backward: itself, or its recipe when it has one whose inputs still live. */
export class SavedTensor implements Saved {
  /** The tensor itself, or the recipe's inputs. */
  private readonly parts: readonly Saved[];
  /** Gives the values while the parts are held. */
  private readonly read: () => Tensor;
  /** Starts to, where that can run beside what computes. */
  private readonly start: (() => () => Tensor) | null;
  private begun: (() => Tensor) | null = null;

  constructor(tensor: Tensor) {
    const recipe = recipes.get(tensor);
    if (!recipe || recipe.inputs.some((input) => input.isDisposed)) {
      this.parts = [tensor];
      this.read = itself(tensor);
      this.start = null;
      return;
    }
    const inputs = recipe.inputs.map((input) => new SavedTensor(input));
    this.parts = inputs;
    this.read = again(recipe.op, inputs);
    this.start = started(recipe.op, inputs);
  }

  get changedAt(): number {
    return this.parts.reduce((latest, { changedAt = 0 }) => Math.max(latest, changedAt), 0);
  }

  retain(): this {
    for (const part of this.parts) part.retain();
    return this;
  }

  release(): void {
    for (const part of this.parts) part.release();
  }

  /**
   * Starts to make what was not kept, where that can run beside what computes until value(), which
   * follows in the same scope.
   */
  begin(): void {
    if (this.start) this.begun = noGrad(this.start);
  }

  /** The values; what was not kept is made again and belongs to the current scope. */
  value(): Tensor {
    const { begun } = this;
    this.begun = null;
    return noGrad(begun ?? this.read);
  }
}
