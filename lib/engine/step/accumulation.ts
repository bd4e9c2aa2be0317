// Gradient accumulation: the number of backwards per step, and the divisor of each loss.

/** `done`: backwards since the last step. */
export interface Accumulation {
  /** Divisor of the loss of each backward. */
  readonly divisor: number;
  /** Whether the next backward, after `done` others, completes the gradients. */
  completes(done: number): boolean;
  /** Whether another backward is allowed after `done` others. */
  accepts(done: number): boolean;
  /** Whether step() updates after `done` backwards. */
  applies(done: number): boolean;
}

/** gradient_accumulation_steps: every `steps`-th step() updates. */
export function managed(steps: number): Accumulation {
  return {
    divisor: steps,
    completes: (done) => done >= steps - 1,
    accepts: (done) => done < steps,
    applies: (done) => done >= steps,
  };
}

/**
 * Accumulation of a pipeline rank with `stages` stages, each with one backward per micro-batch. The
 * last backward does not complete the gradients: reducing them there would wait for ranks that wait
 * for this rank's results. So the caller of the batch completes them.
 */
export const inStages =
  (stages: number) =>
  (steps: number): Accumulation => ({
    divisor: steps,
    completes: () => false,
    accepts: (done) => done < steps * stages,
    applies: (done) => done >= steps * stages,
  });

/** managed_gradient_accumulation false: the caller divides the losses, and every step() updates. */
export const unmanaged = (): Accumulation => ({
  divisor: 1,
  completes: () => false,
  accepts: () => true,
  applies: () => true,
});
