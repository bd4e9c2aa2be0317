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
  /**
   * Keeps the inputs of a segment that is about to run. restore() returns other values than tensors
   * unchanged.
   */
  keep(inputs: readonly unknown[]): KeptInputs;
  /** Returns the store of a segment's results on `device`; null: its inputs have no tensor. */
  results(device: Device | null): ResultStore;
  /**
   * Starts to restore the newest segment. A backward calls it when it reaches the first attention
   * after that segment, because it needs less memory from there on.
   */
  prefetchNewest(device: Device): void;
  /** Frees memory that no segment uses; kept segments are restored as usual. */
  dispose(): void;
}

/** Keeps the inputs on the device, with one reference to each. */
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
