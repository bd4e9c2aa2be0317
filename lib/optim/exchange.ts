// ExchangingOptimizer: rules that exchange compressed vectors between ranks instead of gradients.
import type { SignLevels } from '../runtime/kernels.generated.js';
import { required } from '../runtime/required.js';
import type { Tensor } from '../tensor/index.js';
import type { Optimizer, UpdateSettings, UpdateTensors } from './optimizer.js';
import type { ParamGroup } from './param-groups.js';
import type { UpdateKernels } from './update-kernels.js';

/** An update with an exchange in the middle. `payload`: [range] f32, in the memory of the state. */
export interface PayloadPass {
  /** Resets compression errors first, because they belong to another quantity. */
  readonly startsAfresh: boolean;
  /** Enqueues this rank's vector; overwrites all of `payload`. */
  write(tensors: UpdateTensors, payload: Tensor, kernels: UpdateKernels): void;
  /**
   * Enqueues the update by the average over ranks; control[0] is 1 here. If control[1] is 0, only
   * `weight` changes.
   */
  apply(tensors: UpdateTensors, payload: Tensor, kernels: UpdateKernels): void;
}

/**
 * A rule with an exchange by PayloadPass. Every rank holds whole parameters. update() is the rule
 * for a single rank, and for updates without an exchange.
 */
export interface ExchangingOptimizer<Group extends ParamGroup = ParamGroup>
  extends Optimizer<Group> {
  /** The values that replace the elements of a segment. */
  readonly levels: SignLevels;
  /**
   * Returns the number of consecutive elements in a segment of a parameter. Each segment has its
   * own levels.
   */
  segmentSize(shape: readonly number[]): number;
  /**
   * Returns whether gradients are summed over the ranks before update `step`; else each rank keeps
   * its own.
   */
  sumsGradients(step: number): boolean;
  /**
   * Called once per update with several ranks. Returns null if update() runs without an exchange.
   */
  passOf(settings: UpdateSettings<Group>): PayloadPass | null;
  /**
   * Whether ranks may have made local updates since their weights were equal. Equal on every rank.
   */
  readonly isAdrift: boolean;
  /**
   * Returns a pass that makes the weights of all ranks equal after `applied` updates, or null if
   * they are equal. Its tensors have no gradient.
   */
  resync(applied: number, groups: readonly Readonly<Group>[]): PayloadPass | null;
}

export function canExchange(optimizer: Optimizer): optimizer is ExchangingOptimizer {
  return 'passOf' in optimizer;
}

/** Returns a writer of moments, updated by this rank's own gradients. */
export const writeMoments =
  (groups: readonly Readonly<{ betas: readonly [number, number] }>[]): PayloadPass['write'] =>
  ({ group, grad, state, control }, payload, kernels) => {
    const [beta1] = required(groups[group]).betas;
    kernels.momentPayload({ m: state.exp_avg!, grad, payload, control, beta1 });
  };

/** Segment size for one level per whole parameter. */
export const wholeParameter = (shape: readonly number[]): number =>
  Math.max(
    1,
    shape.reduce((product, n) => product * n, 1),
  );
