// Derives an engine's limits from its configuration: sequence length, step sizes and cache blocks.
import { DsError } from '../errors.js';
import type { CausalLM } from '../models/index.js';
import { stateBytes } from '../nn/recurrent-cache.js';
import type { Device } from '../runtime/device.js';
import type { DType } from '../runtime/dtype.js';
import { supportsGraphs } from '../runtime/graph.js';
import type { ResolvedInferenceConfig } from './config/index.js';
import { blockBytes, type CacheSizes } from './paged-cache.js';
import type { SchedulerLimits } from './scheduler.js';
import type { DraftCost, SpeculationSettings } from './speculation/speculator.js';

const OP = 'initInference';

/**
 * Returns the maximum number of tokens of a sequence. The default is the model's maximum, or ends
 * where longer sequences would change the rotary angles. Throws DS_CONFIG.
 */
export function readMaxTokens(config: ResolvedInferenceConfig, model: CausalLM): number {
  const { maxSeq, placedSeq, sharedAnglesSeq } = model;
  const maxTokens = config.max_out_tokens ?? placedSeq;
  if (maxTokens <= sharedAnglesSeq) return maxTokens;
  const [max, why] =
    maxTokens <= maxSeq
      ? [sharedAnglesSeq, 'the longest sequence with unchanged rotary angles']
      : [maxSeq, "the model's longest sequence"];
  throw new DsError({
    code: 'DS_CONFIG',
    op: `${OP} max_out_tokens`,
    expected: `at most ${max}, ${why}`,
    got: String(maxTokens),
  });
}

/**
 * Returns the settings of speculation; null without the section. `draft` is set for a draft model.
 * Throws DS_CONFIG for a model with recurrent layers.
 */
export function readSpeculation(
  { speculative }: ResolvedInferenceConfig,
  { device, recurrent }: CacheSizes,
  draft: DraftCost | null,
): SpeculationSettings | null {
  if (!speculative) return null;
  if (recurrent) {
    throw new DsError({
      code: 'DS_CONFIG',
      op: `${OP} speculative`,
      expected: 'no value for a model with recurrent layers: a state cannot drop a token',
      got: JSON.stringify(speculative),
    });
  }
  const {
    num_speculative_tokens: maximum,
    prompt_lookup_min: min,
    prompt_lookup_max: max,
    disable_by_batch_size: maxSequences,
  } = speculative;
  const doubling = device.kind === 'cpu' ? CPU_DOUBLING : GPU_DOUBLING;
  return { max: maximum, lookup: { min, max }, maxSequences, doubling, draft };
}

/**
 * Number of tokens at which a step takes twice as long as reading the weights. H200, Llama 8B shape
 * in bf16: 4.1 ms for one token, 7.0 ms for 128. CPU: estimated from memory bandwidth and FLOP/s.
 */
const GPU_DOUBLING = 256;
const CPU_DOUBLING = 24;

/** Largest fraction of free GPU memory for the cache. Activations need the rest. */
const CACHE_FRACTION = 0.9;
/** Cache size relative to a full step of sequences. The surplus holds cached prefixes. */
const REUSE = 4;
/**
 * Tokens of the sequences of that step if the configuration has no max_out_tokens. Most sequences
 * are shorter than the model's maximum, and the program needs GPU memory for other things.
 */
const USUAL_TOKENS = 1024;
const CPU_SEQUENCES = 8;
const CPU_BYTES = 2 ** 30;

/** Inputs of deriveLimits() besides the configuration. */
interface LimitOptions {
  /** Result of readMaxTokens(). */
  maxTokens: number;
  /** Sizes of a draft model's cache, which has as many blocks. Default: no draft model. */
  draft?: CacheSizes | null;
  /** Whether the cache may take all free memory of a GPU. Default: false. */
  fillsDevice?: boolean;
}

/**
 * Returns the limits of steps and cache. Throws DS_LIMIT if the cache cannot hold one sequence of
 * max_out_tokens. Without max_out_tokens, the cache may hold less than `maxTokens`.
 */
export function deriveLimits(
  config: ResolvedInferenceConfig,
  sizes: CacheSizes,
  { maxTokens, draft = null, fillsDevice = false }: LimitOptions,
): SchedulerLimits {
  const { kv_cache: cache, max_out_tokens, max_ragged_batch_size } = config;
  const { blockSize } = sizes;
  const isCpu = sizes.device.kind === 'cpu';
  const isDefault = max_out_tokens === null;
  const blocksPerSequence = Math.ceil(maxTokens / blockSize);
  const usualBlocks = Math.min(blocksPerSequence, Math.ceil(USUAL_TOKENS / blockSize));
  const sequences = config.max_ragged_sequence_count ?? (isCpu ? 32 : 128);
  const needs = {
    longest: blocksPerSequence,
    required: isDefault ? usualBlocks : blocksPerSequence,
    usual: isDefault && !fillsDevice ? usualBlocks : blocksPerSequence,
    sequences,
  };
  const blocks = cache.blocks ?? countBlocks(cache.memory, { sizes, draft }, needs);
  if (blocks < (isDefault ? 1 : blocksPerSequence) && cache.blocks === null) {
    throw new DsError({
      code: 'DS_LIMIT',
      op: `${OP} kv_cache`,
      expected: isDefault
        ? `memory for a block of ${blockBytes(sizes)} bytes`
        : `memory for a sequence of ${maxTokens} tokens: ${blocksPerSequence} blocks of ${blockBytes(sizes)} bytes`,
      got: `room for ${blocks}`,
      hint: `${isDefault ? 'T' : 'Lower max_out_tokens, t'}ake a narrower dtype, or give kv_cache.memory more.`,
    });
  }
  const tokens = max_ragged_batch_size ?? (isCpu ? 512 : 2048);
  return {
    // The runner allocates memory for this many tokens, the most that a step can have.
    tokens: Math.min(tokens, sequences * maxTokens),
    sequences,
    blocks,
    blockSize,
    // Cached blocks have no recurrent states, without which a sequence cannot continue.
    sharesPrefixes: cache.prefix_caching && !sizes.recurrent,
    hostBlocks: countHostBlocks(config, sizes, draft),
    policy: { policy: config.scheduling.policy, maxWait: config.scheduling.max_wait_steps },
  };
}

/**
 * Returns the number of blocks in `host_memory`. Throws DS_CONFIG if they could not hold any
 * prefix. Warns if `prefix_caching` has no effect.
 */
function countHostBlocks(
  { kv_cache: cache, tensor_parallel: tp, moe }: ResolvedInferenceConfig,
  sizes: CacheSizes,
  draft: CacheSizes | null,
): number {
  const { host_memory: memory, prefix_caching: isCaching } = cache;
  if (isCaching && sizes.recurrent) {
    const notice = `kv_cache.prefix_caching has no effect: cached blocks have no states of recurrent layers. Set it to false to omit this notice.`;
    process.emitWarning(notice, { type: 'DsWarning', code: 'DS_CONFIG' });
  }
  if (memory === null) return 0;
  const refusals: readonly [boolean, string][] = [
    [!isCaching, 'prefix_caching: false'],
    [sizes.recurrent != null, 'a model with recurrent layers'],
    [draft !== null, 'a draft model'],
    [tp.tp_size > 1 || moe.ep_size > 1, 'a model on several ranks'],
    [memory < blockBytes(sizes), `${memory}, less than a block of ${blockBytes(sizes)} bytes`],
  ];
  const got = refusals.find(([isRefused]) => isRefused)?.[1];
  if (got === undefined) return Math.floor(memory / blockBytes(sizes));
  const op = `${OP} kv_cache.host_memory`;
  const expected = 'prefix caching on one rank without a draft model, and room for a block';
  throw new DsError({ code: 'DS_CONFIG', op, expected, got });
}

/** Numbers of blocks that decide the size of the cache. */
interface CacheNeeds {
  /** Blocks of the longest sequence. */
  readonly longest: number;
  /** Blocks that a cache in host memory has at least, even beyond CPU_BYTES. */
  readonly required: number;
  /** Blocks of a usual sequence. */
  readonly usual: number;
  /** Sequences of a step. */
  readonly sequences: number;
}

function countBlocks(
  memory: number | null,
  { sizes, draft }: { sizes: CacheSizes; draft: CacheSizes | null },
  { longest, required, usual, sequences }: CacheNeeds,
): number {
  const { device } = sizes;
  const each = blockBytes(sizes) + (draft ? blockBytes(draft) : 0);
  if (memory !== null) return Math.floor(memory / each);
  if (device.kind === 'cpu') {
    const max = Math.floor(CPU_BYTES / each);
    return Math.max(required, Math.min(CPU_SEQUENCES * longest, max));
  }
  const { reserved, cap } = device.memory;
  const total = cap > 0 ? cap : device.info.totalBytes;
  const states = sizes.recurrent ? sequences * stateBytes(sizes.recurrent, sizes.dtype) : 0;
  const room = Math.max(0, Math.floor((CACHE_FRACTION * (total - reserved) - states) / each));
  return Math.min(room, Math.max(longest, REUSE * sequences * usual));
}

/**
 * Returns the dtype option of keys and values; empty for the model's dtype. Throws DS_CONFIG for
 * FP8 with `batch_invariant`, because FP8 changes bits.
 */
export function keyDtypeOption({ kv_cache, batch_invariant }: ResolvedInferenceConfig): {
  keyDtype?: 'u8';
} {
  if (kv_cache.dtype === 'auto') return {};
  if (!batch_invariant) return { keyDtype: 'u8' };
  throw new DsError({
    code: 'DS_CONFIG',
    op: `${OP} kv_cache.dtype`,
    expected: '"auto" with batch_invariant',
    got: JSON.stringify(kv_cache.dtype),
    hint: 'Codes of FP8 change the scores, and training has none.',
  });
}

const DTYPES = { fp32: 'f32', fp16: 'f16', bf16: 'bf16' } as const;

/** The dtype option of the weights; empty if they keep their own dtype. */
export function dtypeOption({ dtype }: ResolvedInferenceConfig): ['dtype', DType][] {
  return dtype && dtype !== 'int8' ? [['dtype', DTYPES[dtype]]] : [];
}

/**
 * Returns whether steps are recorded as graphs. Warns if the configuration asks for it without
 * support.
 */
export function recordsSteps(
  { enable_cuda_graph }: ResolvedInferenceConfig,
  device: Device,
  isUnrecordable: boolean,
): boolean {
  if (!enable_cuda_graph) return false;
  const hasGraphs = supportsGraphs(device);
  if (hasGraphs && !isUnrecordable) return true;
  if (enable_cuda_graph === 'auto') return false;
  const why = hasGraphs
    ? 'steps with tensor_parallel or offload_param cannot be recorded'
    : `${device.name} records no work`;
  const notice = `enable_cuda_graph has no effect: ${why}, kernels are launched one by one`;
  process.emitWarning(notice, { type: 'DsWarning', code: 'DS_CONFIG' });
  return false;
}
