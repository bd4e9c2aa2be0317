// How activations lie between layers that are cut. Source: Shoeybi et al. 2019 (Megatron-LM).
import type { ProcessGroup } from '../comm/index.js';
import type { Tensor } from '../tensor/index.js';
import { copyToGroup, sumOverGroup } from './collectives.js';

/** The way into layers of which each rank has a part, and out of them. */
export interface Stream {
  /** Whether a rank has some of the tokens alone outside of the cut layers. */
  readonly isShared: boolean;
  /**
   * What the ranks have, whole on each. `counts`: whether this rank's part of the gradient counts,
   * which is summed over the ranks.
   */
  enter(x: Tensor, counts?: boolean): Tensor;
  /** The sum of the ranks' parts. */
  leave(x: Tensor): Tensor;
}

/** Every rank has all activations between cut layers. */
export function wholeStream(group: ProcessGroup): Stream {
  return {
    isShared: false,
    enter: (x, counts = true) => (counts ? copyToGroup(x, group) : x.detach()),
    leave: (x) => sumOverGroup(x, group),
  };
}
