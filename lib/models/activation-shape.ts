// What a block keeps of each token between forward and backward: the sizes behind a plan of memory.

/** Per token of one block; elements are of the activations' dtype. */
export interface BlockActivations {
  /** Elements that the backward needs. */
  kept: number;
  /** Bytes beside them, f32: the attention's log-sum-exps, and statistics of norms. */
  statistics: number;
  /** Elements of gradients and temporaries that the backward of the block adds at most. */
  backward: number;
  /** The same where the block has been computed again from its kept input: beside all it keeps. */
  replayed: number;
  /** Elements of the residual stream: what is kept of a block that is computed again. */
  stream: number;
  /** Elements kept where norms and activations alone are computed again; null: not offered. */
  selective: number | null;
}
