// DeclaredState: how an optimizer declares the state tensors of a parameter. Memory layout, offload
// and checkpoints follow the declaration.
import type { DType } from '../runtime/dtype.js';
import { argumentError, valueError } from '../runtime/input-errors.js';
import { describe, numel, type View } from '../runtime/view.js';

/** One state tensor of a parameter. */
export interface StateTensor {
  /** Shape of the state of a whole parameter. */
  readonly shape: readonly number[];
  /** Dtype in memory and in checkpoints. */
  readonly dtype: DType;
  /** Whether checkpoints contain it. If not, every update recomputes it. */
  readonly saved: boolean;
  /** Value of each element before the first update. */
  readonly initial: number;
  /**
   * Number of consecutive elements of the parameter per element of this state: 1, or a larger power
   * of two (a block). A rank that holds a part of the parameter holds the state of this part. No
   * part begins inside a block. Null: the state belongs to the parameter as a whole, and every rank
   * with a part holds all of it.
   */
  readonly per: number | null;
}

/** State tensors by name, such as "momentum_buffer". Names contain no dots. */
export type DeclaredState = Readonly<Record<string, StateTensor>>;

/** Declares one f32 value per element of a parameter. Checkpoints contain it. */
export function perElement(shape: readonly number[], initial = 0): StateTensor {
  return { shape, dtype: 'f32', saved: true, initial, per: 1 };
}

/**
 * Declares one f32 value per block of `size` elements of a parameter. The last block may be
 * shorter. Checkpoints contain it.
 */
export function perBlock(shape: readonly number[], size: number): StateTensor {
  const blocks = Math.ceil(numel(shape) / size);
  return { shape: [blocks], dtype: 'f32', saved: true, initial: 0, per: size };
}

/** Declares an f32 tensor of `shape` for a parameter as a whole. */
export function perParameter(
  shape: readonly number[],
  { saved = true, initial = 0 }: { saved?: boolean; initial?: number } = {},
): StateTensor {
  return { shape, dtype: 'f32', saved, initial, per: null };
}

/**
 * Throws DS_ARGUMENT if a hyperparameter needs state that does not exist. The optimizer creates
 * state once. It creates no state if this hyperparameter is then 0 or false. `location` names the
 * group.
 */
export function requireState(location: string, value: number | boolean, state?: View): void {
  if (state || !value) return;
  const was = typeof value === 'number' ? '0' : 'false';
  const hint = 'Create a new optimizer with it: state is created once.';
  throw valueError(location, `${was}, the value when its state was created`, value, hint);
}

/** An object that declares optimizer state, such as an optimizer. */
export interface StateKeeper {
  /** Name in errors. */
  readonly name: string;
  /**
   * Declares the state of a parameter in a group, in addition to its master weights. `shape` is the
   * shape of the whole parameter. The result must not change between calls.
   */
  declareState(group: number, shape: readonly number[]): DeclaredState;
}

/** Names that checkpoints and state dicts use for other values. */
const RESERVED = ['master', 'fp32', 'step'];

/**
 * Returns the declared state of a whole parameter with this shape. Throws DS_ARGUMENT for a
 * reserved name, or if the number of elements contradicts `per`.
 */
export function declaredState(
  optimizer: StateKeeper,
  group: number,
  shape: readonly number[],
): DeclaredState {
  const declared = optimizer.declareState(group, shape);
  for (const [name, state] of Object.entries(declared)) {
    const location = `${optimizer.name}.declareState: ${name}`;
    if (name.includes('.') || RESERVED.includes(name)) {
      throw argumentError(location, `a name without dots, other than ${RESERVED.join(', ')}`, name);
    }
    const { per } = state;
    if (per === null) continue;
    if (!Number.isInteger(Math.log2(per)))
      throw argumentError(location, 'per a power of two', `${per}`);
    const wanted = Math.ceil(numel(shape) / per);
    if (numel(state.shape) === wanted) continue;
    throw argumentError(
      location,
      `${wanted} elements, one per ${per} of the parameter`,
      describe(state),
    );
  }
  return declared;
}

/** Returns the state tensors that checkpoints contain. */
export function savedState(declared: DeclaredState): DeclaredState {
  return Object.fromEntries(Object.entries(declared).filter(([, { saved }]) => saved));
}

/** Returns a key. Parameters with equal keys can share flat state tensors. */
export function kindOf(declared: DeclaredState): string {
  const named = Object.entries(declared);
  return named
    .map(([name, { dtype, per, initial }]) => [name, dtype, per, initial].join())
    .join(';');
}

/**
 * Returns the elements of a state that belong to the elements [from, from + numel) of its
 * parameter.
 */
export function portionOf(
  { shape, per }: StateTensor,
  part: { readonly from: number; readonly numel: number },
): { from: number; numel: number } {
  if (per === null) return { from: 0, numel: numel(shape) };
  const from = Math.ceil(part.from / per);
  return { from, numel: Math.ceil((part.from + part.numel) / per) - from };
}
