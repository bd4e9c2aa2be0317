// Memory of a block's activations per token, the input of memory plans.

/** Number of elements per token of one block, in the activations' dtype. */
export interface BlockActivations {
  /** Elements that are kept for the backward. */
  kept: number;
  /** Bytes of f32 statistics: log-sum-exps of attention, and statistics of norms. */
  statistics: number;
  /** Peak of gradients and temporaries in the block's backward, in elements. */
  backward: number;
  /**
   * Peak elements while the block is recomputed from its kept input, in addition to all kept
   * elements.
   */
  replayed: number;
  /** Elements of the residual stream: the kept input of a recomputed block. */
  stream: number;
  /** Elements kept if only norms and activations are recomputed; null if not supported. */
  selective: number | null;
}
