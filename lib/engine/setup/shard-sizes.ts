// Reads the sizes of state replicas (MiCS) and secondary weight copies (hpZ).
import type { ResolvedConfig } from '../../../types/config.js';
import type { ShardSizes } from '../ranks.js';

/** Null means no replicas. */
export function shardSizes({ zero_optimization: zero }: ResolvedConfig): ShardSizes {
  const { stage, mics_shard_size: copy, zero_hpz_partition_size: near } = zero;
  if (stage !== 3) return {};
  return { copy: copy > 0 ? copy : null, near: near > 1 ? near : null };
}
