// Rules across the keys that shard, reduce, offload and recompute.
import type { ResolvedConfig } from '../../types/config.js';
import type { Rule } from './rule.js';

/** offload_optimizer needs stage 1, 2 or 3, as in DeepSpeed. */
const offloadNeedsStage: Rule = ({ zero_optimization: zero }) =>
  zero.offload_optimizer.device !== 'none' && zero.stage === 0
    ? {
        path: ['zero_optimization', 'stage'],
        expected: 'stage 1, 2 or 3 with offload_optimizer',
        got: '0',
        hint: 'Set zero_optimization.stage to 2, or offload_optimizer.device to "none".',
      }
    : null;

const ONE_BIT: readonly string[] = ['OneBitAdam', 'OneBitLamb', 'OneBitSGD', 'ZeroOneAdam'];

/** 1-bit optimizers need stage 0: ranks exchange moments of whole parameters. Source: DeepSpeed. */
const oneBitIsWhole: Rule = ({ optimizer, zero_optimization: { stage } }) =>
  optimizer && ONE_BIT.includes(optimizer.type) && stage !== 0
    ? {
        path: ['zero_optimization', 'stage'],
        expected: `0 with ${optimizer.type}, because its ranks exchange moments of whole parameters`,
        got: String(stage),
        hint: 'Set it to 0, or optimizer.type to "Adam", "Lamb" or "SGD".',
      }
    : null;

/** super_offload needs offload: an update on the device cannot overlap with backward. */
const overlapNeedsOffload: Rule = ({ zero_optimization: { offload_optimizer: offload } }) =>
  offload.super_offload && offload.device === 'none'
    ? {
        path: ['zero_optimization', 'offload_optimizer', 'super_offload'],
        expected: 'false while offload_optimizer.device is "none"',
        got: 'true',
        hint: 'Set offload_optimizer.device to "cpu", or super_offload to false or null.',
      }
    : null;

/**
 * super_offload refuses a disk: a speculative update would read and write the state there twice.
 */
const overlapNeedsHostMemory: Rule = ({ zero_optimization: { offload_optimizer: offload } }) =>
  offload.super_offload && offload.device === 'nvme'
    ? {
        path: ['zero_optimization', 'offload_optimizer', 'super_offload'],
        expected: 'false or null with offload_optimizer.device "nvme"',
        got: 'true',
        hint: 'Leave super_offload out: transfers overlap forward and backward without it.',
      }
    : null;

const OFFLOADED = ['offload_optimizer', 'offload_param'] as const;

/** A disk needs nvme_path: only the user knows which disk is fast and has space. */
const diskHasPath: Rule = ({ zero_optimization: zero }) => {
  const section = OFFLOADED.find((key) => isOnDisk(zero, key) && !zero[key].nvme_path);
  return section
    ? {
        path: ['zero_optimization', section, 'nvme_path'],
        expected: 'a folder on a local disk with device "nvme"',
        got: JSON.stringify(zero[section].nvme_path),
        hint: 'Set it to a folder such as "/local_nvme"; `ds io FOLDER` measures its disk.',
      }
    : null;
};

/** gpu_share refuses a disk: the GPU updates state only from host memory. */
const sharedStateIsInMemory: Rule = ({ zero_optimization: { offload_optimizer: offload } }) =>
  offload.gpu_share && offload.device === 'nvme'
    ? {
        path: ['zero_optimization', 'offload_optimizer', 'gpu_share'],
        expected: '0 or null with device "nvme"',
        got: String(offload.gpu_share),
        hint: 'Leave it out: host threads update state on a disk.',
      }
    : null;

/** A disk needs at least one slot: updates and weights pass through slots. */
const diskHasSlots: Rule = ({ zero_optimization: zero }) => {
  const section = OFFLOADED.find((key) => isOnDisk(zero, key) && zero[key].buffer_count === 0);
  return section
    ? {
        path: ['zero_optimization', section, 'buffer_count'],
        expected: 'at least 1 with device "nvme"',
        got: '0',
        hint: 'Leave it out: 4 slots or more read, compute and write at once.',
      }
    : null;
};

function isOnDisk(
  zero: ResolvedConfig['zero_optimization'],
  section: (typeof OFFLOADED)[number],
): boolean {
  const acts = section === 'offload_optimizer' || zero.stage === 3;
  return acts && zero[section].device === 'nvme';
}

/** offload_param needs ratio 1: an update on the device would write weights in host memory. */
const offloadedWeightsAreWhole: Rule = ({ zero_optimization: zero }) =>
  zero.stage === 3 &&
  zero.offload_param.device !== 'none' &&
  zero.offload_optimizer.device !== 'none' &&
  zero.offload_optimizer.ratio < 1
    ? {
        path: ['zero_optimization', 'offload_optimizer', 'ratio'],
        expected: `1 with offload_param.device "${zero.offload_param.device}"`,
        got: String(zero.offload_optimizer.ratio),
        hint: 'Set offload_param.device to "none" to keep part of the optimizer on the device, or ratio to 1.',
      }
    : null;

/** super_offload refuses weights on a disk: speculative weights would be written twice. */
const weightsOnDiskWait: Rule = ({ zero_optimization: zero }) =>
  zero.stage === 3 && zero.offload_param.device === 'nvme' && zero.offload_optimizer.super_offload
    ? {
        path: ['zero_optimization', 'offload_optimizer', 'super_offload'],
        expected: 'false or null with offload_param.device "nvme"',
        got: 'true',
        hint: 'Leave super_offload out.',
      }
    : null;

/** allgather_bucket_size is even: shards start on boundaries of 4 bytes. */
const gatherBucketIsEven: Rule = ({ zero_optimization: { allgather_bucket_size: size } }) =>
  size % 2 !== 0
    ? {
        path: ['zero_optimization', 'allgather_bucket_size'],
        expected: 'a multiple of 2',
        got: String(size),
        hint: `Set it to ${size + 1}.`,
      }
    : null;

/**
 * The reduce-scatter of stage 2 cannot scale gradients before the sum. Source: DeepSpeed, which
 * asserts it at stage 2 and not at stage 3.
 */
const scatterScalesAfterwards: Rule = (config) => {
  const { stage, reduce_scatter } = config.zero_optimization;
  const { prescale_gradients: before, gradient_predivide_factor: factor } = config;
  if (stage !== 2 || !reduce_scatter || (!before && factor === 1)) return null;
  const hint = 'or zero_optimization.reduce_scatter to false.';
  const where = 'at stage 2 with reduce_scatter';
  return before
    ? {
        path: ['prescale_gradients'],
        expected: `false ${where}`,
        got: 'true',
        hint: `Set prescale_gradients to false, ${hint}`,
      }
    : {
        path: ['gradient_predivide_factor'],
        expected: `1 ${where}`,
        got: String(factor),
        hint: `Set gradient_predivide_factor to 1, ${hint}`,
      };
};

/** Stage 3 supports only the mean of gradients. */
const stage3Averages: Rule = ({ gradient_allreduce_op: op, zero_optimization: { stage } }) =>
  op === 'sum' && stage === 3
    ? {
        path: ['gradient_allreduce_op'],
        expected: '"mean" at stage 3',
        got: '"sum"',
        hint: 'Set gradient_allreduce_op to "mean", or zero_optimization.stage to 2.',
      }
    : null;

/**
 * Unmanaged accumulation refuses overlap_comm, except at stage 2: reduction during backward needs
 * to know the last backward of a step.
 */
const unmanagedOverlap: Rule = ({ managed_gradient_accumulation, zero_optimization: zero }) =>
  !managed_gradient_accumulation && zero.overlap_comm && (zero.stage === 1 || zero.stage === 3)
    ? {
        path: ['managed_gradient_accumulation'],
        expected: `true at stage ${zero.stage} with overlap_comm`,
        got: 'false',
        hint: 'Set zero_optimization.overlap_comm to false, or zero_optimization.stage to 2.',
      }
    : null;

/** Keys of ZeRO++ and MiCS need stage 3. Source: DeepSpeed. */
const copiesAreOfStage3: Rule = ({ zero_optimization: zero }) => {
  if (zero.stage === 3) return null;
  const isOn: Partial<Record<keyof typeof zero, boolean>> = {
    zero_quantized_weights: zero.zero_quantized_weights,
    zero_quantized_gradients: zero.zero_quantized_gradients,
    zero_hpz_partition_size: zero.zero_hpz_partition_size > 1,
    mics_shard_size: zero.mics_shard_size > 0,
  };
  const [key] = Object.entries(isOn).find(([, on]) => on) ?? [];
  return key
    ? {
        path: ['zero_optimization', 'stage'],
        expected: `3 with ${key}`,
        got: String(zero.stage),
        hint: `Set it to 3, or leave ${key} out.`,
      }
    : null;
};

/** MiCS excludes hpZ: shards within few ranks need no second copy. */
const oneKindOfCopies: Rule = ({ zero_optimization: zero }) =>
  zero.mics_shard_size > 0 && zero.zero_hpz_partition_size > 1
    ? {
        path: ['zero_optimization', 'zero_hpz_partition_size'],
        expected: '1 with mics_shard_size',
        got: String(zero.zero_hpz_partition_size),
        hint: 'Keep one of them.',
      }
    : null;

/** mics_shard_size is at least 1, or -1 for all ranks. */
const copiesHaveRanks: Rule = ({ zero_optimization: { mics_shard_size: size } }) =>
  size === 0
    ? {
        path: ['zero_optimization', 'mics_shard_size'],
        expected: 'at least 1, or -1 for all ranks',
        got: '0',
        hint: 'Set it to the number of ranks of one node.',
      }
    : null;

export const zeroRules: readonly Rule[] = [
  offloadNeedsStage,
  overlapNeedsOffload,
  overlapNeedsHostMemory,
  diskHasPath,
  diskHasSlots,
  sharedStateIsInMemory,
  offloadedWeightsAreWhole,
  weightsOnDiskWait,
  gatherBucketIsEven,
  scatterScalesAfterwards,
  stage3Averages,
  unmanagedOverlap,
  oneBitIsWhole,
  copiesAreOfStage3,
  oneKindOfCopies,
  copiesHaveRanks,
];
