// ExchangingOptimizer: the interface of 1-bit optimizers. Their ranks exchange compressed vectors
// instead of gradients.
import type { SignLevels } from '../runtime/kernels.generated.js';
import { required } from '../runtime/required.js';
import type { Tensor } from '../tensor/index.js';
import type { Optimizer, UpdateSettings, UpdateTensors } from './optimizer.js';
import type { ParamGroup } from './param-groups.js';
import type { UpdateKernels } from './update-kernels.js';

/**
 * An update with an exchange between its two halves. `payload` is [range] f32, in the memory of the
 * state.
 */
export interface PayloadPass {
  /**
   * Whether the exchange first zeroes its compression errors, because they belong to another
   * quantity.
   */
  readonly resetsErrors: boolean;
  /** Enqueues the first half: writes this rank's vector to all of `payload`. */
  write(tensors: UpdateTensors, payload: Tensor, kernels: UpdateKernels): void;
  /**
   * Enqueues the second half: updates by `payload`, the average over the ranks. control[0] is 1
   * here. If control[1] is 0, only `weight` changes.
   */
  apply(tensors: UpdateTensors, payload: Tensor, kernels: UpdateKernels): void;
}

/**
 * An optimizer that exchanges compressed vectors. Every rank holds whole parameters. A PayloadPass
 * is an update with an exchange. update() is the rule for a single rank, and for updates without an
 * exchange.
 */
export interface ExchangingOptimizer<Group extends ParamGroup = ParamGroup>
  extends Optimizer<Group> {
  /** How the exchange computes the two levels of a segment. */
  readonly levels: SignLevels;
  /**
   * Returns the number of consecutive elements of a parameter in one segment. Each segment has its
   * own levels.
   */
  segmentSize(shape: readonly number[]): number;
  /**
   * Returns whether the ranks sum their gradients before update `step`. If not, each rank uses its
   * own.
   */
  sumsGradients(step: number): boolean;
  /**
   * Called once per update if there are several ranks. Returns null if this update needs no
   * exchange; the engine then calls update().
   */
  passOf(settings: UpdateSettings<Group>): PayloadPass | null;
  /**
   * Whether ranks may hold different weights, because they updated without an exchange. The value
   * is the same on every rank.
   */
  readonly needsResync: boolean;
  /**
   * Returns a pass that makes the weights of all ranks equal after `applied` updates, or null if
   * they are equal. The tensors of this pass have no gradient.
   */
  resync(applied: number, groups: readonly Readonly<Group>[]): PayloadPass | null;
}

export function canExchange(optimizer: Optimizer): optimizer is ExchangingOptimizer {
  return 'passOf' in optimizer;
}

/**
 * Returns a PayloadPass.write that updates the first moments by this rank's own gradients and
 * writes them.
 */
export const writeMoments =
  (groups: readonly Readonly<{ betas: readonly [number, number] }>[]): PayloadPass['write'] =>
  ({ group, grad, state, control }, payload, kernels) => {
    const [beta1] = required(groups[group]).betas;
    kernels.momentPayload({ m: state.exp_avg!, grad, payload, control, beta1 });
  };

/** A segmentSize() with one segment per parameter. */
export const wholeParameter = (shape: readonly number[]): number =>
  Math.max(
    1,
    shape.reduce((product, n) => product * n, 1),
  );
