// Rules under which ranks exchange vectors of one bit per element in place of gradients: what an
// update gives to the exchange, and what it does with the average.
import type { SignLevels } from '../runtime/kernels.generated.js';
import type { Tensor } from '../tensor/index.js';
import type { Optimizer, UpdateSettings, UpdateTensors } from './optimizer.js';
import type { ParamGroup } from './param-groups.js';
import type { UpdateKernels } from './update-kernels.js';

/**
 * An update with an exchange in the middle; `payload` is [range] f32, in the memory of the state.
 */
export interface PayloadPass {
  /** What earlier exchanges have rounded away is forgotten first: it was of another quantity. */
  readonly startsAfresh: boolean;
  /** Enqueues what this rank brings, all of it overwritten. */
  write(tensors: UpdateTensors, payload: Tensor, kernels: UpdateKernels): void;
  /**
   * Enqueues the update by the ranks' average; control[0] is 1 here. Nothing but `weight` changes
   * when control[1] is 0.
   */
  apply(tensors: UpdateTensors, payload: Tensor, kernels: UpdateKernels): void;
}

/**
 * A rule whose ranks share what a PayloadPass writes. Whole parameters on every rank; update() is
 * the rule of one rank, and of updates without an exchange.
 */
export interface ExchangingOptimizer<Group extends ParamGroup = ParamGroup>
  extends Optimizer<Group> {
  /** What stands for the elements of a segment. */
  readonly levels: SignLevels;
  /**
   * Elements of a segment of a parameter of this shape: consecutive ones, which have levels of
   * their own.
   */
  segmentSize(shape: readonly number[]): number;
  /**
   * Whether gradients are summed over the ranks before update number `step`; else each rank's are
   * its own.
   */
  sumsGradients(step: number): boolean;
  /** Once per update, over several ranks: null where update() makes it without an exchange. */
  passOf(settings: UpdateSettings<Group>): PayloadPass | null;
  /**
   * Whether ranks may have updated by themselves since their weights were the same. The same on
   * every rank.
   */
  readonly isAdrift: boolean;
  /**
   * What makes the weights the same on all ranks after `applied` updates; null where they are. Its
   * tensors have no gradient.
   */
  resync(applied: number, groups: readonly Readonly<Group>[]): PayloadPass | null;
}

export function canExchange(optimizer: Optimizer): optimizer is ExchangingOptimizer {
  return 'passOf' in optimizer;
}

/** What gives each whole parameter levels of its own. */
export const wholeParameter = (shape: readonly number[]): number =>
  Math.max(
    1,
    shape.reduce((product, n) => product * n, 1),
  );
