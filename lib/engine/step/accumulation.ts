// Gradient accumulation: how many backwards make a step, and what each one's loss is divided by.

/** `done` counts the backwards since the last step. */
export interface Accumulation {
  /** What the loss of each backward is divided by. */
  readonly divisor: number;
  /** Whether a backward that follows `done` others completes the gradients. */
  completes(done: number): boolean;
  /** Whether another backward may follow `done` others. */
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
 * A pipeline's, of which a rank has `stages`, each with a backward for every micro-batch. What
 * follows the last one waits for ranks that wait for its results: it is left to those who run the
 * batch.
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
