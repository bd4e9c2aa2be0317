// Which samples of a global micro-batch are those of this rank.
import { type SampleShare, tensorsIn } from '../../tensor/index.js';

/**
 * As DistributedSampler deals samples out: of `size` data ranks, number `rank` has the samples
 * `rank`, `rank` + `size`, ... Null where it has all of them.
 */
export function sampleShareOf(
  inputs: readonly unknown[],
  { rank, size: ranks }: { rank: number; size: number },
): SampleShare | null {
  if (ranks === 1) return null;
  const samples = tensorsIn(inputs)[0]?.shape[0] ?? 0;
  return samples > 0 ? { samples, rank, ranks } : null;
}
