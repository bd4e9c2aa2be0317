// The layout of activations between split layers. Source: Shoeybi et al. 2019 (Megatron-LM).
import type { ProcessGroup } from '../comm/index.js';
import type { Tensor } from '../tensor/index.js';
import { copyToCopies, copyToGroup, sumOfLinear, sumOverGroup } from './collectives.js';

/** How activations enter and leave layers that are split over ranks. */
export interface Stream {
  /** Whether each rank has only some of the tokens outside of the split layers. */
  readonly isShared: boolean;
  /**
   * Returns the activations, whole on each rank, for a split layer. The gradient of x is the sum of
   * the ranks' gradients.
   */
  enter(x: Tensor): Tensor;
  /**
   * enter() for a layer with copies on other ranks. Only the copy with `counts` contributes a
   * gradient.
   */
  enterCopies(x: Tensor, counts: boolean): Tensor;
  /** Returns the sum of the ranks' partial results. */
  leave(x: Tensor): Tensor;
  /**
   * Returns the sum of the ranks' x weight^T plus the bias: x [.., in here], weight [out, in here].
   * The bias is equal on all ranks and is added once.
   */
  leaveLinear(x: Tensor, weight: Tensor, bias: Tensor | null): Tensor;
}

/** Returns the layout with all activations on every rank, outside of split layers. */
export function wholeStream(group: ProcessGroup): Stream {
  return {
    isShared: false,
    enter: (x) => copyToGroup(x, group),
    enterCopies: (x, counts) => copyToCopies(x, group, counts),
    leave: (x) => sumOverGroup(x, group),
    leaveLinear: (x, weight, bias) => sumOfLinear(x, weight, bias, group),
  };
}
