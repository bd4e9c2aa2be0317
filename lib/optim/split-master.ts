// Split masters: an f32 master as the model's bf16 weight and a second half in the optimizer state.
import type { DeclaredState, StateTensor } from './declared-state.js';
import type { Optimizer, UpdateSettings, UpdateTensors } from './optimizer.js';
import type { ParamGroup } from './param-groups.js';
import type { UpdateKernels } from './update-kernels.js';

/** Names of the additional state tensors. */
export const halves = { low: 'master_low', ties: 'master_ties' } as const;

/** Bytes that extend a bf16 weight to its f32 master: 16 bits, and one bit for ties. */
export const LOWER_HALF = 2 + 1 / 8;

/**
 * Tensors of an update with split masters. `master` is the bf16 weights; `state` also has the
 * tensors of `halves`.
 */
export type SplitTensors = Omit<UpdateTensors, 'weight'>;

/** An optimizer that can update split masters, with the bits of update() on f32 masters. */
export interface SplittingOptimizer<Group extends ParamGroup = ParamGroup>
  extends Optimizer<Group> {
  /** False if a subclass overrides update(), so that updateHalves() is another rule. */
  readonly updatesHalves: boolean;
  /** Enqueues one update of one range. If control[1] is 0, nothing changes. */
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
 * Runs `optimizer` on split masters: 2.125 bytes of state per parameter instead of 4, in addition
 * to its bf16 weight. csrc/core/master_halves.h defines the encoding.
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

/** Returns the lower half of zero: 16 bits, stored as bf16, and the tie bit. */
function halvesOf(shape: readonly number[]): DeclaredState {
  const elements = shape.reduce((product, n) => product * n, 1);
  const kept = { saved: false, initial: 0 };
  const low: StateTensor = { ...kept, shape, dtype: 'bf16', per: 1 };
  const ties: StateTensor = { ...kept, shape: [Math.ceil(elements / 8)], dtype: 'u8', per: 8 };
  return { [halves.low]: low, [halves.ties]: ties };
}
