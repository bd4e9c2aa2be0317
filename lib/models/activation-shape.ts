// Sizes that a block keeps per token between forward and backward: the input of memory plans.

/** Sizes per token of one block; elements have the activations' dtype. */
export interface BlockActivations {
  /** Elements that the backward needs. */
  kept: number;
  /** Bytes of f32 statistics: log-sum-exps of attention, and statistics of norms. */
  statistics: number;
  /** Peak of gradients and temporaries in the backward of the block, in elements. */
  backward: number;
  /**
   * Peak elements when the block is recomputed from its kept input, in addition to everything kept.
   */
  replayed: number;
  /** Elements of the residual stream: the kept input of a recomputed block. */
  stream: number;
  /** Elements kept if only norms and activations are recomputed; null: not supported. */
  selective: number | null;
}
