// Which samples of a global micro-batch are those of this rank.
import { type SampleShare, tensorsIn } from '../../tensor/index.js';

/**
 * As DistributedSampler deals samples out: data rank r has those of number r, r + dpWorldSize, ...
 */
export function sampleShareOf(
  inputs: readonly unknown[],
  { dpRank: rank, dpWorldSize: ranks }: { dpRank: number; dpWorldSize: number },
): SampleShare | null {
  if (ranks === 1) return null;
  const samples = tensorsIn(inputs)[0]?.shape[0] ?? 0;
  return samples > 0 ? { samples, rank, ranks } : null;
}
