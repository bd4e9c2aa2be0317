// AdamW with 8-bit moments; not exact. Sources: Dettmers et al. 2021, arXiv:2110.02861;
// bitsandbytes.

import { namesOf, readOptions } from '../runtime/options.js';
import { requireFinite } from '../runtime/require-number.js';
import { required } from '../runtime/required.js';
import { numel } from '../runtime/view.js';
import { type AdamGroup, adamDefaults, adamScalars, adamTensors } from './adam-rule.js';
import { type DeclaredState, perBlock, perElement, type StateTensor } from './declared-state.js';
import type { UpdateSettings, UpdateTensors } from './optimizer.js';
import { makeGroups, type ParamsOf } from './param-groups.js';
import { StandaloneOptimizer } from './standalone.js';
import type { UpdateKernels } from './update-kernels.js';

/** Default hyperparameters of AdamW8bit's groups, and options of all groups. */
export interface AdamW8bitOptions {
  /** Learning rate. Default: 1e-3. */
  lr?: number;
  /** Decay factors of the first and the second moment. Default: [0.9, 0.999]. */
  betas?: readonly [number, number];
  /** Added to the denominator of an update. Default: 1e-8. */
  eps?: number;
  /** Weight decay. Default: 0. */
  weightDecay?: number;
  /** Divide the moments by 1 - beta^t. Default: true. */
  biasCorrection?: boolean;
  /** Parameters with fewer elements have f32 moments. Default: 4096, as in bitsandbytes. */
  min8bitSize?: number;
}

/** Elements per scale. Must equal the block size in csrc/core/dynamic_code.h. */
const BLOCK = 256;
const ZERO = { signed: 127, unsigned: 0 };

/**
 * AdamW with 8-bit moments, as in bitsandbytes. The update itself runs in f32. A moment is stored
 * as one of 256 codes (dynamic tree quantization) times the largest magnitude in its block of 256
 * elements. Before an update, moments are converted to f32; after it, they are rounded to codes. A
 * positive second moment never rounds to 0.
 *
 * Moments need 2 bytes and 1/32 byte per parameter instead of 8 bytes. Master weights stay f32.
 * Losses are similar to AdamW's, but not equal. All ZeRO stages and kinds of offload give equal
 * bits.
 */
export class AdamW8bit extends StandaloneOptimizer<AdamGroup> {
  readonly name = 'AdamW8bit';
  readonly groups: AdamGroup[];
  private readonly biasCorrection: boolean;
  private readonly min8bitSize: number;

  /** Throws DS_ARGUMENT for an invalid option or parameter group. */
  constructor(params: ParamsOf<AdamGroup>, given: AdamW8bitOptions = {}) {
    super();
    const options = readOptions('AdamW8bit', given, namesOf.AdamW8bitOptions);
    this.groups = makeGroups<AdamGroup>('AdamW8bit', params, adamDefaults(options));
    this.biasCorrection = options.biasCorrection ?? true;
    this.min8bitSize = options.min8bitSize ?? 4096;
    requireFinite('AdamW8bit min8bitSize', this.min8bitSize, 0);
  }

  declareState(_group: number, shape: readonly number[]): DeclaredState {
    if (numel(shape) < this.min8bitSize) {
      return { exp_avg: perElement(shape), exp_avg_sq: perElement(shape) };
    }
    const codes = (initial: number): StateTensor => ({
      shape,
      dtype: 'u8',
      saved: true,
      initial,
      per: 1,
    });
    return {
      exp_avg: codes(ZERO.signed),
      exp_avg_sq: codes(ZERO.unsigned),
      exp_avg_absmax: perBlock(shape, BLOCK),
      exp_avg_sq_absmax: perBlock(shape, BLOCK),
    };
  }

  update(
    tensors: UpdateTensors,
    { step, groups }: UpdateSettings<AdamGroup>,
    kernels: UpdateKernels,
  ): void {
    const group = required(groups[tensors.group]);
    const scalars = adamScalars(group, this.biasCorrection ? step : null);
    const operands = { ...adamTensors(tensors), ...scalars };
    const { exp_avg_absmax: mScale, exp_avg_sq_absmax: vScale } = tensors.state;
    if (mScale && vScale) kernels.adamW8bit({ ...operands, mScale, vScale });
    else kernels.adamW(operands);
  }
}
