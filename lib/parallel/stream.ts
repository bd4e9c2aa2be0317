// How activations lie between layers that are cut. Source: Shoeybi et al. 2019 (Megatron-LM).
import type { ProcessGroup } from '../comm/index.js';
import type { Tensor } from '../tensor/index.js';
import { copyToCopies, copyToGroup, sumOfLinear, sumOverGroup } from './collectives.js';

/** The way into layers of which each rank has a part, and out of them. */
export interface Stream {
  /** Whether a rank has some of the tokens alone outside of the cut layers. */
  readonly isShared: boolean;
  /** What the ranks have, whole on each; its gradient is the sum of the ranks'. */
  enter(x: Tensor): Tensor;
  /** The same for a layer that has copies on other ranks, of whose gradients one `counts`. */
  enterCopies(x: Tensor, counts: boolean): Tensor;
  /** The sum of the ranks' parts. */
  leave(x: Tensor): Tensor;
  /**
   * The sum of the ranks' x weight^T, and the bias, which all have alike, once: x [.., in here],
   * weight [out, in here].
   */
  leaveLinear(x: Tensor, weight: Tensor, bias: Tensor | null): Tensor;
}

/** Every rank has all activations between cut layers. */
export function wholeStream(group: ProcessGroup): Stream {
  return {
    isShared: false,
    enter: (x) => copyToGroup(x, group),
    enterCopies: (x, counts) => copyToCopies(x, group, counts),
    leave: (x) => sumOverGroup(x, group),
    leaveLinear: (x, weight, bias) => sumOfLinear(x, weight, bias, group),
  };
}
