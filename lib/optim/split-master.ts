// SplitMaster: an optimizer that stores an f32 master as the model's bf16 weight and its lower half
// in the optimizer state.
import type { DeclaredState, StateTensor } from './declared-state.js';
import type { Optimizer, UpdateSettings, UpdateTensors } from './optimizer.js';
import type { ParamGroup } from './param-groups.js';
import type { UpdateKernels } from './update-kernels.js';

/** Names of the two state tensors with the lower halves. */
export const halves = { low: 'master_low', ties: 'master_ties' } as const;

/**
 * Bytes per parameter that extend a bf16 weight to its f32 master: 16 bits, and one bit for ties.
 */
export const LOWER_HALF = 2 + 1 / 8;

/**
 * The tensors of an update with split masters. `master` has the bf16 weights, and `state` also has
 * the tensors of `halves`.
 */
export type SplitTensors = Omit<UpdateTensors, 'weight'>;

/**
 * An optimizer that can update split masters. The results equal the results of update() on f32
 * masters bit for bit.
 */
export interface SplittingOptimizer<Group extends ParamGroup = ParamGroup>
  extends Optimizer<Group> {
  /**
   * Whether updateHalves() has the same rule as update(). False if a subclass overrides update().
   */
  readonly updatesHalves: boolean;
  /** Enqueues the update of one range. If control[1] is 0, nothing changes. */
  updateHalves(
    tensors: SplitTensors,
    settings: UpdateSettings<Group>,
    kernels: UpdateKernels,
  ): void;
}

export function canSplit(optimizer: Optimizer): optimizer is SplittingOptimizer {
  return 'updatesHalves' in optimizer && optimizer.updatesHalves === true;
}

/**
 * Runs `optimizer` on split masters. In addition to its bf16 weight, a parameter needs 2.125 bytes
 * for the lower half of its master instead of 4 for the whole. csrc/core/master_halves.h defines
 * the encoding.
 */
export class SplitMaster implements Optimizer {
  constructor(private readonly optimizer: SplittingOptimizer) {}

  get name(): string {
    return this.optimizer.name;
  }

  get groups(): ParamGroup[] {
    return this.optimizer.groups;
  }

  declareState(group: number, shape: readonly number[]): DeclaredState {
    return { ...this.optimizer.declareState(group, shape), ...halvesOf(shape) };
  }

  update(tensors: UpdateTensors, settings: UpdateSettings, kernels: UpdateKernels): void {
    this.optimizer.updateHalves(tensors, settings, kernels);
  }
}

/**
 * Declares the lower halves: 16 bits per element, stored as bf16, and one tie bit. Zero is the
 * lower half of a master that equals its weight.
 */
function halvesOf(shape: readonly number[]): DeclaredState {
  const elements = shape.reduce((product, n) => product * n, 1);
  const kept = { saved: false, initial: 0 };
  const low: StateTensor = { ...kept, shape, dtype: 'bf16', per: 1 };
  const ties: StateTensor = { ...kept, shape: [Math.ceil(elements / 8)], dtype: 'u8', per: 8 };
  return { [halves.low]: low, [halves.ties]: ties };
}
