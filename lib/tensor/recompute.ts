// Selective recomputation: an op saves how to recompute a cheap value instead of the value.
import { required } from '../runtime/required.js';
import { isGradEnabled, noGrad, runRecomputation, type Saved } from './tape.js';
import type { Tensor } from './tensor.js';

/** An op that always gives the same bits for the same inputs. */
export interface RecomputableOp {
  (...inputs: Tensor[]): Tensor;
  /**
   * Starts the op concurrently with compute. The returned function waits for the result. Default:
   * not concurrent.
   */
  begin?(...inputs: Tensor[]): () => Tensor;
}

interface Recipe {
  readonly op: RecomputableOp;
  readonly inputs: readonly Tensor[];
}

const recipes = new WeakMap<Tensor, Recipe>();

/**
 * Declares `value` as the result of op(...inputs), bit for bit. Matrix products that read it keep
 * `inputs` for their backward instead of the value, and recompute it there. Worthwhile if `inputs`
 * are kept anyway and `op` is element-wise or a norm. `op` must not draw random numbers, and its
 * parameters must keep their values until the backward. Returns `value`. Source: Korthikanti et al.
 * 2022, applied to norms and activations.
 */
export function recomputable(value: Tensor, op: RecomputableOp, ...inputs: Tensor[]): Tensor {
  if (isGradEnabled()) recipes.set(value, { op, inputs });
  return value;
}

/** Returns whether a SavedTensor of `tensor` keeps the inputs of its recipe instead. */
export function isRecomputable(tensor: Tensor): boolean {
  return recipeOf(tensor) !== null;
}

function recipeOf(tensor: Tensor): Recipe | null {
  const recipe = recipes.get(tensor);
  return recipe?.inputs.every((input) => !input.isDisposed) ? recipe : null;
}

/** Returns op(...inputs), marked as recomputable. */
export function recomputed(op: RecomputableOp, ...inputs: Tensor[]): Tensor {
  return recomputable(op(...inputs), op, ...inputs);
}

// Functions outside of the class, so that a recipe's closure does not hold the tensor that it
// replaces.
const keepTensor = (tensor: Tensor) => (): Tensor => tensor;
const recomputeFrom = (op: RecomputableOp, inputs: readonly SavedTensor[]) => (): Tensor =>
  runRecomputation(() => op(...inputs.map((input) => input.value())));
const startFrom = (op: RecomputableOp, inputs: readonly SavedTensor[]) =>
  op.begin
    ? () => runRecomputation(() => required(op.begin?.(...inputs.map((input) => input.value()))))
    : null;

/** A tensor saved for a backward: the tensor, or its recipe if the recipe's inputs are alive. */
export class SavedTensor implements Saved {
  /** The tensor itself, or the recipe's inputs. */
  private readonly sources: readonly Saved[];
  /** Returns the values while the sources are held. */
  private readonly read: () => Tensor;
  /** Starts the recomputation concurrently with compute, if possible. */
  private readonly start: (() => () => Tensor) | null;
  private finishStarted: (() => Tensor) | null = null;

  constructor(tensor: Tensor) {
    const recipe = recipeOf(tensor);
    if (!recipe) {
      this.sources = [tensor];
      this.read = keepTensor(tensor);
      this.start = null;
      return;
    }
    const inputs = recipe.inputs.map((input) => new SavedTensor(input));
    this.sources = inputs;
    this.read = recomputeFrom(recipe.op, inputs);
    this.start = startFrom(recipe.op, inputs);
  }

  get changedAt(): number {
    return this.sources.reduce((latest, { changedAt = 0 }) => Math.max(latest, changedAt), 0);
  }

  retain(): this {
    for (const source of this.sources) source.retain();
    return this;
  }

  release(): void {
    for (const source of this.sources) source.release();
  }

  /**
   * Starts the recomputation of a value that was not kept, concurrently with compute if possible.
   * value() must follow in the same scope.
   */
  begin(): void {
    if (this.start) this.finishStarted = noGrad(this.start);
  }

  /** Returns the values. A recomputed tensor belongs to the current scope. */
  value(): Tensor {
    const { finishStarted } = this;
    this.finishStarted = null;
    return noGrad(finishStarted ?? this.read);
  }
}
