// Selects this rank's samples of a global micro-batch.
import { type SampleShare, tensorsIn } from '../../tensor/index.js';

/**
 * Samples are distributed as in DistributedSampler: data rank `rank` of `size` has the samples
 * `rank`, `rank` + `size`, ... Returns null if it has all samples.
 */
export function sampleShareOf(
  inputs: readonly unknown[],
  { rank, size: ranks }: { rank: number; size: number },
): SampleShare | null {
  if (ranks === 1) return null;
  const samples = tensorsIn(inputs)[0]?.shape[0] ?? 0;
  return samples > 0 ? { samples, rank, ranks } : null;
}
