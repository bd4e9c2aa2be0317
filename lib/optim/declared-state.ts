// What an optimizer keeps of a parameter, as it declares it: tensors by name, and what becomes of
// them where the parameter is cut.
import type { DType } from '../runtime/dtype.js';
import { refused, refusedValue } from '../runtime/refused.js';
import { describe, numel, type View } from '../runtime/view.js';

/** A tensor that an optimizer keeps of a parameter. */
export interface StateTensor {
  /** Of the state of a whole parameter. */
  readonly shape: readonly number[];
  /** Of its elements, in memory and in checkpoints. */
  readonly dtype: DType;
  /** Whether checkpoints hold it. What they do not hold every update makes anew. */
  readonly saved: boolean;
  /** What each element is before the first update. */
  readonly initial: number;
  /**
   * How many elements of the parameter, in their order, one element of it belongs to: 1, or another
   * power of two. Whoever holds a part of the parameter holds what belongs to it, and no part
   * begins within a block. Null: it belongs to the whole parameter, and whoever holds a part of
   * that has all of it.
   */
  readonly per: number | null;
}

/** Tensors by name: "momentum_buffer" and the like, without dots. */
export type DeclaredState = Readonly<Record<string, StateTensor>>;

/** An f32 value for each element of a parameter, which checkpoints hold. */
export function perElement(shape: readonly number[], initial = 0): StateTensor {
  return { shape, dtype: 'f32', saved: true, initial, per: 1 };
}

/**
 * An f32 value for each block of `size` elements of a parameter, the last of which may be shorter.
 */
export function perBlock(shape: readonly number[], size: number): StateTensor {
  const blocks = Math.ceil(numel(shape) / size);
  return { shape: [blocks], dtype: 'f32', saved: true, initial: 0, per: size };
}

/** An f32 tensor of `shape` for a whole parameter. */
export function perParameter(
  shape: readonly number[],
  { saved = true, initial = 0 }: { saved?: boolean; initial?: number } = {},
): StateTensor {
  return { shape, dtype: 'f32', saved, initial, per: null };
}

/**
 * Throws DS_ARGUMENT for a hyperparameter of group `place` that needs state of which there is none:
 * it was 0, or false, when the optimizer's state was made.
 */
export function requireState(place: string, value: number | boolean, state?: View): void {
  if (state || !value) return;
  const was = typeof value === 'number' ? '0' : 'false';
  const hint = 'Make another optimizer with it: state is made once.';
  throw refusedValue(place, `${was}, for which its state was made`, value, hint);
}

/** Who says what it keeps. */
export interface StateKeeper {
  /** What it is called in errors. */
  readonly name: string;
  /**
   * What is kept beside the master weights of a parameter of a group, by the shape that it has as a
   * whole. The same whenever it is asked.
   */
  declareState(group: number, shape: readonly number[]): DeclaredState;
}

/** Names that mean something else in checkpoints and state dicts. */
const RESERVED = ['master', 'fp32', 'step'];

/**
 * What `optimizer` keeps of a parameter of `group` that has this shape as a whole. Throws
 * DS_ARGUMENT where that is no state: of another number of elements than `per` says, or under a
 * name that means something else.
 */
export function declaredState(
  optimizer: StateKeeper,
  group: number,
  shape: readonly number[],
): DeclaredState {
  const declared = optimizer.declareState(group, shape);
  for (const [name, state] of Object.entries(declared)) {
    const place = `${optimizer.name}.declareState: ${name}`;
    if (name.includes('.') || RESERVED.includes(name)) {
      throw refused(place, `a name without dots, and none of ${RESERVED.join(', ')}`, name);
    }
    const { per } = state;
    if (per === null) continue;
    if (!Number.isInteger(Math.log2(per))) throw refused(place, 'per a power of two', `${per}`);
    const wanted = Math.ceil(numel(shape) / per);
    if (numel(state.shape) === wanted) continue;
    throw refused(place, `${wanted} elements, one per ${per} of the parameter`, describe(state));
  }
  return declared;
}

/** What of it a checkpoint holds. */
export function savedState(declared: DeclaredState): DeclaredState {
  return Object.fromEntries(Object.entries(declared).filter(([, { saved }]) => saved));
}

/** The same for parameters whose state can lie in the same flat tensors. */
export function kindOf(declared: DeclaredState): string {
  const named = Object.entries(declared);
  return named
    .map(([name, { dtype, per, initial }]) => [name, dtype, per, initial].join())
    .join(';');
}

/** The elements of a state that belong to elements [from, from + numel) of its parameter. */
export function portionOf(
  { shape, per }: StateTensor,
  part: { readonly from: number; readonly numel: number },
): { from: number; numel: number } {
  if (per === null) return { from: 0, numel: numel(shape) };
  const from = Math.ceil(part.from / per);
  return { from, numel: Math.ceil((part.from + part.numel) / per) - from };
}
