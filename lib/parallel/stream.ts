// The layout of activations between split layers. Source: Shoeybi et al. 2019 (Megatron-LM).
import type { ProcessGroup } from '../comm/index.js';
import type { Tensor } from '../tensor/index.js';
import { copyToCopies, copyToGroup, sumOfLinear, sumOverGroup } from './collectives.js';

/** Entry to and exit from layers that are split over ranks. */
export interface Stream {
  /** Whether a rank has only some of the tokens outside of the split layers. */
  readonly isShared: boolean;
  /**
   * Returns the activations, whole on each rank; their gradient is the sum of the ranks' gradients.
   */
  enter(x: Tensor): Tensor;
  /** enter() for a layer with copies on other ranks; only one copy's gradient `counts`. */
  enterCopies(x: Tensor, counts: boolean): Tensor;
  /** Returns the sum of the ranks' parts. */
  leave(x: Tensor): Tensor;
  /**
   * Returns the sum of the ranks' x weight^T plus the shared bias once: x [.., in here], weight
   * [out, in here].
   */
  leaveLinear(x: Tensor, weight: Tensor, bias: Tensor | null): Tensor;
}

/** Every rank has all activations between split layers. */
export function wholeStream(group: ProcessGroup): Stream {
  return {
    isShared: false,
    enter: (x) => copyToGroup(x, group),
    enterCopies: (x, counts) => copyToCopies(x, group, counts),
    leave: (x) => sumOverGroup(x, group),
    leaveLinear: (x, weight, bias) => sumOfLinear(x, weight, bias, group),
  };
}
