// Where a segment's inputs wait between its forward and its replay; here: where they are.
import type { Saved } from '../tape.js';
import { Tensor } from '../tensor.js';

/** The inputs of one segment. Lives while it is retained; dies with the last release(). */
export interface KeptInputs extends Saved {
  /** The inputs in their order, on their devices, borrowed; once, when the replay starts. */
  restore(): readonly unknown[];
}

/** Chosen once by configure(). */
export interface ActivationStore {
  /** Called before the segment runs. What is not a tensor is handed back as it is. */
  keep(inputs: readonly unknown[]): KeptInputs;
  /** Gives back memory that no segment uses; segments still kept are restored as usual. */
  dispose(): void;
}

/** The inputs stay on the device: one reference each. */
class ResidentInputs implements KeptInputs {
  constructor(private readonly inputs: readonly unknown[]) {}

  get changedAt(): number {
    const tensors = this.inputs.filter((input) => input instanceof Tensor);
    return tensors.reduce((latest, { changedAt }) => Math.max(latest, changedAt), 0);
  }

  retain(): this {
    for (const input of this.inputs) if (input instanceof Tensor) input.retain();
    return this;
  }

  release(): void {
    for (const input of this.inputs) if (input instanceof Tensor) input.release();
  }

  restore(): readonly unknown[] {
    return this.inputs;
  }
}

export const onDevice: ActivationStore = {
  keep: (inputs) => new ResidentInputs(inputs),
  dispose() {},
};
