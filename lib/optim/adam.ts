// DeepSpeed's names for AdamW: Adam with adamWMode, FusedAdam and DeepSpeedCPUAdam.
import { type OptionNames, readOptions } from '../runtime/options.js';
import { type AdamGroup, AdamW, type AdamWOptions } from './adamw.js';
import type { ParamsOf } from './param-groups.js';

/** Defaults of Adam's groups. */
export interface AdamOptions extends Omit<AdamWOptions, 'decoupled'> {
  /** True (default) decays weights directly, as AdamW; false adds weight_decay * p to the gradient. */
  adamWMode?: boolean;
}

const NAMES: OptionNames<AdamOptions> = {
  ...{ lr: true, betas: true, eps: true, weightDecay: true, biasCorrection: true, adamWMode: true },
};

/** AdamW unless adamWMode is false, as "Adam" is in DeepSpeed. */
export class Adam extends AdamW {
  /** Throws DS_ARGUMENT, see makeGroups. */
  constructor(params: ParamsOf<AdamGroup>, given: AdamOptions = {}) {
    const { adamWMode, ...options } = readOptions('Adam', given, NAMES);
    super(params, { ...options, decoupled: adamWMode ?? true });
  }
}

/** One pass over all state, as every optimizer here. */
/** Where the state is, the update runs: this is Adam too. */
export { Adam as FusedAdam, Adam as DeepSpeedCPUAdam };
