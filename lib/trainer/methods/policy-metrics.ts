// Computes metrics of grpo() and rloo() by TRL's names: how many ratios are clipped, and how much
// the sampler differs from training.
import { exp, type Tensor, where } from '../../tensor/index.js';
import { type DeviceSum, type DeviceSums, extremeOf, meanOf } from '../step-metrics.js';
import {
  computeCorrection,
  computeVespoWeights,
  type PolicyBatch,
  type PolicyLossOptions,
  type Ratios,
} from './policy-losses.js';

/** Losses that do not clip ratios from both sides. */
const UNCLIPPED = ['cispo', 'sapo', 'vespo'];

/**
 * Returns the fractions of clipped ratios: of tokens, or of completions at that level. `low_min`
 * and `high_max` are extremes over completions. `counted`: number of counted tokens.
 */
export function computeClipMetrics(
  { ratio, bySequence, batch }: Ratios,
  { epsilon, epsilonHigh, loss }: PolicyLossOptions,
  counted: number,
): DeviceSums {
  const { mask, advantages } = batch;
  const toFlags = (tensor: Tensor): Tensor => tensor.to('f32');
  const [isLoss, isGain] = [toFlags(advantages.lt(0)), toFlags(advantages.gt(0))];
  const mean = (tensor: Tensor): DeviceSum =>
    bySequence ? meanOf(tensor) : { sum: tensor.mul(mask).sum(), count: counted };
  const from = bySequence ?? ratio;
  if (loss === 'cispo') {
    return { cispo_clip_ratio: mean(toFlags(from.gt(epsilonHigh)).mul(isGain)) };
  }
  if (loss === 'vespo') return { 'vespo/phi_seq_mean': meanOf(computeVespoWeights(batch)) };
  if (UNCLIPPED.includes(loss)) return {};
  const low = toFlags(from.lt(1 - epsilon)).mul(isLoss);
  const high = toFlags(from.gt(1 + epsilonHigh)).mul(isGain);
  const tokens = mask.sum({ dim: 1, keepDim: true });
  const shares = (tensor: Tensor): Tensor =>
    bySequence ? tensor : tensor.mul(mask).sum({ dim: 1, keepDim: true }).div(tokens.clamp(1));
  // A completion without counted tokens has no fraction.
  const replaceEmpty = (share: Tensor, other: number): Tensor =>
    bySequence ? share : where(tokens.gt(0), share, other);
  return {
    'clip_ratio/low_mean': mean(low),
    'clip_ratio/low_min': extremeOf(replaceEmpty(shares(low), 1).min(), 'min'),
    'clip_ratio/high_mean': mean(high),
    'clip_ratio/high_max': extremeOf(replaceEmpty(shares(high), 0).max(), 'max'),
    'clip_ratio/region_mean': mean(low.add(high)),
  };
}

/**
 * Returns the difference between the log-probabilities of the sampler and of training, and exp(old
 * - sampler): the factor of the correction or, without a correction, the ratio of each token.
 */
export function computeSamplerMetrics(
  batch: PolicyBatch,
  options: Pick<PolicyLossOptions, 'correction' | 'correctionRange'>,
  counted: number,
): DeviceSums {
  const { old, sampler, mask } = batch;
  if (!sampler) return {};
  const distance = old.sub(sampler).abs().mul(mask);
  const factor = computeCorrection(batch, options) ?? exp(old.sub(sampler).mul(mask));
  const isByToken = factor.size(1) === mask.size(1) && !options.correction?.startsWith('sequence');
  const counts = mask.gt(0);
  const [min, max] = isByToken
    ? [where(counts, factor, Number.POSITIVE_INFINITY), where(counts, factor, 0)]
    : [factor, factor];
  const name = 'sampling/importance_sampling_ratio';
  return {
    'sampling/sampling_logp_difference/mean': { sum: distance.sum(), count: counted },
    'sampling/sampling_logp_difference/max': extremeOf(distance.max(), 'max'),
    [`${name}/min`]: extremeOf((min as Tensor).min(), 'min'),
    [`${name}/mean`]: isByToken ? { sum: factor.mul(mask).sum(), count: counted } : meanOf(factor),
    [`${name}/max`]: extremeOf((max as Tensor).max(), 'max'),
  };
}
