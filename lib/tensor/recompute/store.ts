// The interface that stores a segment's inputs and results until its replay, and the store that
// leaves them on the device.
import type { Device } from '../../runtime/device.js';
import { ResidentResults, type ResultStore } from '../kept-results.js';
import type { Saved } from '../tape.js';
import { Tensor } from '../tensor.js';

/** The inputs of one segment. Lives while it is retained; the last release() frees it. */
export interface KeptInputs extends Saved {
  /** Returns the inputs in order, on their devices, borrowed. Call once, when the replay starts. */
  restore(): readonly unknown[];
}

/** Stores the inputs and kept results of segments. configure() chooses one. */
export interface ActivationStore {
  /** Called before the segment runs. Values that are not tensors return unchanged. */
  keep(inputs: readonly unknown[]): KeptInputs;
  /** Returns the store of a segment's results on `device`; null: its inputs have no tensor. */
  results(device: Device | null): ResultStore;
  /**
   * The backward after the newest segment has reached its first attention: the rest of it needs
   * less memory.
   */
  prefetchNewest(device: Device): void;
  /** Frees memory that no segment uses; kept segments are restored as usual. */
  dispose(): void;
}

/** Keeps the inputs on the device by one reference each. */
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
  results: () => new ResidentResults(),
  prefetchNewest() {},
  dispose() {},
};
