// Master weights in two halves, the first of which is the bf16 weight that the model computes with:
// an optimizer that keeps the second among its state.
import type { DeclaredState, StateTensor } from './declared-state.js';
import type { Optimizer, UpdateSettings, UpdateTensors } from './optimizer.js';
import type { ParamGroup } from './param-groups.js';
import type { UpdateKernels } from './update-kernels.js';

/** The names that state has beside an optimizer's own. */
export const halves = { low: 'master_low', ties: 'master_ties' } as const;

/**
 * Tensors of an update whose master weights are split: `master` is the bf16 weights themselves, and
 * `state` has what `halves` names.
 */
export type SplitTensors = Omit<UpdateTensors, 'weight'>;

/** An optimizer that can update master weights in halves, with the bits of update() on f32 ones. */
export interface SplittingOptimizer<Group extends ParamGroup = ParamGroup>
  extends Optimizer<Group> {
  /**
   * False where update() is another rule than updateHalves(), as in a class derived from this one.
   */
  readonly updatesHalves: boolean;
  /** Enqueues one update of one range. When control[1] is 0 nothing changes. */
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
 * `optimizer` over split masters: 2 bytes and a bit of state for each parameter instead of 4,
 * beside its bf16 weight. The encoding is that of csrc/core/master_halves.h.
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

/** Half of zero, 16 bits in no dtype of their own, and its bit. */
function halvesOf(shape: readonly number[]): DeclaredState {
  const elements = shape.reduce((product, n) => product * n, 1);
  const kept = { saved: false, initial: 0 };
  const low: StateTensor = { ...kept, shape, dtype: 'bf16', per: 1 };
  const ties: StateTensor = { ...kept, shape: [Math.ceil(elements / 8)], dtype: 'u8', per: 8 };
  return { [halves.low]: low, [halves.ties]: ties };
}
