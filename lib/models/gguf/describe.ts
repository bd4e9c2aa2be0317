// Creates the metadata of a GGUF file, and its tensors of rotary factors, from the sizes of a
// model.

import { F32, type GgufMetadata, type WrittenValue } from '../../checkpoint/index.js';
import { formatValue } from '../../runtime/format-value.js';
import { argumentError } from '../../runtime/input-errors.js';
import { required } from '../../runtime/required.js';
import { type LatentSizes, type RotarySizes, readWindows } from '../rotary/config.js';
import type { DeltaSizes } from '../rotary/delta-config.js';
import type { MoeSizes } from '../rotary/mixture.js';
import { rotaryRule, type YarnScaling } from '../rotary/rope-scaling.js';
import type { GgufArchitecture, GgufMixture } from './architecture.js';
import type { GgufEntries } from './entries.js';

/** Returns the error for a setting that llama.cpp lacks or computes differently. */
const unsupportedError = (what: string, expected: string, got: unknown) =>
  argumentError(`saveGguf ${what}`, expected, formatValue(got), 'llama.cpp has no key for it.');

/** Returns the metadata for a model. Throws DS_ARGUMENT for settings that llama.cpp lacks. */
export function createMetadata(
  architecture: GgufArchitecture,
  sizes: RotarySizes,
  fileType: number,
): GgufMetadata {
  const { name } = architecture;
  if (sizes.mamba) throw unsupportedError('mamba', 'no state space layers', sizes.mamba.layers);
  const entries = Object.entries({
    ...describeSizes(architecture, sizes),
    ...describeRope(architecture, sizes),
    ...describeScales(architecture, sizes),
    ...describeWindow(architecture, sizes),
    ...(architecture.hasKinds && describeLayerKinds(sizes)),
    ...(sizes.delta && describeDelta(sizes.delta)),
    ...architecture.written?.(sizes),
  });
  return new Map<string, WrittenValue>([
    ['general.architecture', name],
    ['general.file_type', fileType],
    ['general.quantization_version', 2],
    ...entries.map(([key, value]): [string, WrittenValue] => [`${name}.${key}`, value]),
  ]);
}

function describeSizes(
  { epsilon, parallelBy, mixture, numbers = {}, lacksSharedKeys }: GgufArchitecture,
  { moe, ...sizes }: RotarySizes,
): GgufEntries {
  if (!parallelBy && sizes.parallel === false) throw unsupportedError('parallel', 'true', false);
  if (lacksSharedKeys && sizes.kvHeads !== sizes.heads) {
    throw unsupportedError('kvHeads', `${sizes.heads}, as many as heads`, sizes.kvHeads);
  }
  return {
    vocab_size: sizes.vocabSize,
    context_length: sizes.maxSeq,
    embedding_length: sizes.channels,
    block_count: sizes.layers,
    feed_forward_length: sizes.hidden,
    'attention.head_count': sizes.heads,
    ...(sizes.latent
      ? describeLatent(sizes.latent)
      : {
          'attention.head_count_kv': sizes.kvHeads,
          'attention.key_length': sizes.headDim,
          'attention.value_length': sizes.headDim,
        }),
    [epsilon ? 'attention.layer_norm_epsilon' : 'attention.layer_norm_rms_epsilon']: new F32(
      sizes.eps,
    ),
    ...(parallelBy && { use_parallel_residual: sizes.parallel ?? parallelBy === 'key' }),
    ...(moe && mixture && describeExperts(mixture, moe)),
    ...(moe?.sharedHidden &&
      'shared_expert_intermediate_size' in numbers && {
        expert_shared_feed_forward_length: moe.sharedHidden,
      }),
  };
}

/** Returns the keys of layers of several kinds. */
function describeLayerKinds(sizes: RotarySizes): GgufEntries {
  const { headDim, kvHeads, hidden, full, sharedKeys, layerInputDim, layers } = sizes;
  const wide = full?.headDim ?? headDim;
  const firstShared = layers - (sharedKeys?.layers ?? 0);
  const isDoubled = (layer: number): boolean =>
    sharedKeys?.doubled === true && layer >= firstShared;
  const isFull = readWindows(sizes).map((window) => window === null);
  // llama.cpp reads keys of the last layer without a window, and of the layer before it.
  if (sharedKeys && (!isFull[firstShared - 1] || isFull[firstShared - 2] !== false)) {
    const expected = 'after a layer with a window and one without';
    throw unsupportedError('sharedKeys', expected, sharedKeys.layers);
  }
  const perLayer = (of: (window: number | null, layer: number) => number): Int32Array =>
    Int32Array.from(readWindows(sizes), of);
  return {
    'attention.head_count_kv': perLayer((window) =>
      window === null ? (full?.kvHeads ?? kvHeads) : kvHeads,
    ),
    'attention.key_length': wide,
    'attention.value_length': wide,
    'attention.key_length_swa': headDim,
    'attention.value_length_swa': headDim,
    'attention.shared_kv_layers': sharedKeys?.layers ?? 0,
    feed_forward_length: perLayer((_, layer) => (isDoubled(layer) ? 2 : 1) * hidden),
    embedding_length_per_layer_input: layerInputDim ?? 0,
    'rope.dimension_count': wide,
    'rope.dimension_count_swa': headDim,
  };
}

/** Returns the keys of gated delta nets. Throws DS_ARGUMENT for settings that llama.cpp lacks. */
function describeDelta({
  keyHeads,
  heads,
  keyDim,
  valueDim,
  taps,
  layers,
}: DeltaSizes): GgufEntries {
  if (valueDim !== keyDim)
    throw unsupportedError('delta valueDim', `${keyDim}, as keyDim`, valueDim);
  const every = layers.indexOf(false) + 1;
  if (every === 0 || layers.some((isDelta, i) => isDelta !== ((i + 1) % every !== 0))) {
    throw unsupportedError('delta layers', 'all layers but each nth', layers);
  }
  return {
    'ssm.conv_kernel': taps,
    'ssm.state_size': keyDim,
    'ssm.group_count': keyHeads,
    'ssm.time_step_rank': heads,
    'ssm.inner_size': heads * valueDim,
    full_attention_interval: every,
  };
}

/** llama.cpp computes latent attention with one key head, the latent. */
const describeLatent = ({
  queryRank,
  keyRank,
  plainDim,
  rotaryDim,
  valueDim,
}: LatentSizes): GgufEntries => ({
  'attention.head_count_kv': 1,
  ...(queryRank !== null && { 'attention.q_lora_rank': queryRank }),
  'attention.kv_lora_rank': keyRank,
  'attention.key_length': keyRank + rotaryDim,
  'attention.value_length': keyRank,
  'attention.key_length_mla': plainDim + rotaryDim,
  'attention.value_length_mla': valueDim,
});

/** Returns the keys of experts. Throws DS_ARGUMENT for settings that llama.cpp lacks. */
function describeExperts(mixture: GgufMixture, moe: MoeSizes): GgufEntries {
  const { normalizes = true, isSigmoid, mayLead, shared, hasGroups } = mixture;
  const hasFactor = mixture.hasFactor ?? isSigmoid;
  if (moe.denseLayers.length > 0 && !mayLead) {
    throw unsupportedError('moe denseLayers', 'no dense layers', moe.denseLayers);
  }
  if (normalizes !== 'key' && moe.normalize !== normalizes) {
    throw unsupportedError('moe normalize', String(normalizes), moe.normalize);
  }
  if (moe.groups !== 1 && hasGroups !== true) throw unsupportedError('moe groups', '1', moe.groups);
  return {
    expert_count: moe.experts,
    expert_used_count: moe.perToken,
    expert_feed_forward_length: moe.hidden,
    ...(normalizes === 'key' && { expert_weights_norm: moe.normalize }),
    ...(hasFactor && {
      expert_gating_func: isSigmoid ? 2 : 1,
      expert_weights_scale: new F32(moe.scale),
    }),
    ...(moe.groups > 1 && {
      expert_group_count: moe.groups,
      expert_group_used_count: moe.keptGroups,
    }),
    ...((isSigmoid || mayLead) && { leading_dense_block_count: moe.denseLayers.length }),
    ...(mixture.hasStep && {
      interleave_moe_layer_step: 1,
      expert_shared_feed_forward_length: Number(moe.sharedHidden),
    }),
    ...(shared === 'ungated' && { expert_shared_count: Number(moe.sharedHidden) / moe.hidden }),
  };
}

const countRotaryChannels = ({ headDim, partialRotaryFactor = 1, latent }: RotarySizes): number =>
  latent?.rotaryDim ?? Math.floor(headDim * partialRotaryFactor);

function describeRope(
  { name, lacksRope, windowRope, isLatent, hasKinds, rotatesAll = false }: GgufArchitecture,
  sizes: RotarySizes,
): GgufEntries {
  if (lacksRope) return {};
  const { ropeTheta, ropeScaling, ropeLayers, windowRopeTheta } = sizes;
  if (ropeLayers?.some((rotates, i) => rotates !== (rotatesAll || (i + 1) % 4 !== 0))) {
    const expected = rotatesAll ? 'rotation in all layers' : 'every fourth layer without rotation';
    throw unsupportedError('ropeLayers', expected, ropeLayers);
  }
  const ofWindows = windowRope === 'unscaled' ? ropeTheta : 10_000;
  if (windowRope !== 'base' && (windowRopeTheta ?? ofWindows) !== ofWindows) {
    throw unsupportedError('windowRopeTheta', String(ofWindows), windowRopeTheta);
  }
  const base: GgufEntries = {
    'rope.freq_base': new F32(ropeTheta),
    ...(windowRope === 'base' && { 'rope.freq_base_swa': new F32(windowRopeTheta ?? 10_000) }),
    'rope.dimension_count': countRotaryChannels(sizes),
  };
  switch (ropeScaling?.type) {
    case undefined:
    case 'llama3':
      return base;
    case 'proportional':
      if (!hasKinds) throw unsupportedError('ropeScaling', 'another scaling', ropeScaling);
      return base;
    case 'linear':
      return {
        ...base,
        'rope.scaling.type': 'linear',
        'rope.scaling.factor': new F32(ropeScaling.factor),
      };
    case 'longrope': {
      const { originalMaxSeq, attentionFactor } = ropeScaling;
      return {
        ...base,
        'rope.scaling.original_context_length': originalMaxSeq,
        'rope.scaling.attn_factor': new F32(
          attentionFactor ?? rotaryRule(angleSizes(sizes), ropeScaling, 1).magnitude,
        ),
      };
    }
    case 'yarn':
      return { ...base, ...describeYarn(ropeScaling, isLatent ? 0.1 : 1) };
    default:
      throw unsupportedError(
        'ropeScaling',
        `none, linear, llama3, yarn or longrope in ${name}`,
        ropeScaling,
      );
  }
}

/** Returns the keys of YaRN. Throws DS_ARGUMENT for another factor of sines. */
function describeYarn(scaling: YarnScaling, perLog: number): GgufEntries {
  const { factor, originalMaxSeq, betaFast, betaSlow, mscale, mscaleAllDim } = scaling;
  if (scaling.attentionFactor !== undefined) {
    throw unsupportedError('ropeScaling attentionFactor', 'the default', scaling.attentionFactor);
  }
  if (mscale !== mscaleAllDim) {
    throw unsupportedError('ropeScaling mscale', `${mscaleAllDim}, as mscaleAllDim`, mscale);
  }
  return {
    'rope.scaling.type': 'yarn',
    'rope.scaling.factor': new F32(factor),
    'rope.scaling.original_context_length': originalMaxSeq,
    ...(betaFast !== undefined && { 'rope.scaling.yarn_beta_fast': new F32(betaFast) }),
    ...(betaSlow !== undefined && { 'rope.scaling.yarn_beta_slow': new F32(betaSlow) }),
    ...(mscaleAllDim !== undefined && {
      'rope.scaling.yarn_log_multiplier': new F32(perLog * mscaleAllDim),
    }),
  };
}

const angleSizes = (sizes: RotarySizes) => ({
  rotaryDim: countRotaryChannels(sizes),
  ropeTheta: sizes.ropeTheta,
});

/** Returns the divisors of rotary frequencies, which llama.cpp reads from tensors. */
export function computeRopeDivisors(
  sizes: RotarySizes,
): Readonly<Record<string, readonly number[]>> {
  const { ropeScaling } = sizes;
  if (ropeScaling?.type === 'longrope') {
    const { longFactor, shortFactor } = ropeScaling;
    return { 'rope_factors_long.weight': longFactor, 'rope_factors_short.weight': shortFactor };
  }
  if (ropeScaling?.type === 'proportional') {
    const pairs = (sizes.full?.headDim ?? sizes.headDim) / 2;
    const rotated = Math.floor(ropeScaling.share * pairs);
    return {
      'rope_freqs.weight': Array.from({ length: pairs }, (_, i) => (i < rotated ? 1 : 1e30)),
    };
  }
  if (ropeScaling?.type !== 'llama3') return {};
  const plain = rotaryRule(angleSizes(sizes), null, 1).frequencies;
  const scaled = rotaryRule(angleSizes(sizes), ropeScaling, 1).frequencies;
  const divisors = plain.map((frequency, i) => frequency / (scaled[i] ?? frequency));
  return { 'rope_freqs.weight': divisors };
}

/** Returns llama.cpp's keys for the scales of the family. */
function describeScales(
  { name, hasOffsetNorms }: GgufArchitecture,
  sizes: RotarySizes,
): GgufEntries {
  const { scores, embed, residual, logits, scoreCap, logitCap, clip } = sizes.scales ?? {};
  const named: Readonly<Record<string, number | null | undefined>> = hasOffsetNorms
    ? { attn_logit_softcapping: scoreCap, final_logit_softcapping: logitCap }
    : {
        embedding_scale: embed,
        residual_scale: residual,
        'attention.scale': scores,
        logit_scale: logits,
        final_logit_softcapping: logitCap,
        'attention.clamp_kqv': clip,
      };
  if (hasOffsetNorms && typeof scores === 'number' && scores !== gemmaScale(name, sizes)) {
    throw unsupportedError('scales.scores', String(gemmaScale(name, sizes)), scores);
  }
  const numbers = Object.entries(named).filter(([, value]) => typeof value === 'number');
  return Object.fromEntries(numbers.map(([key, value]) => [key, new F32(required(value))]));
}

/** Returns llama.cpp's query_pre_attn_scalar: channels / heads in 27B models, else headDim. */
function gemmaScale(name: string, { layers, channels, heads, headDim }: RotarySizes): number {
  return layers === (name === 'gemma2' ? 46 : 62) ? channels / heads : headDim;
}

function describeWindow({ name, window }: GgufArchitecture, sizes: RotarySizes): GgufEntries {
  const windows = readWindows(sizes);
  const width = windows.find((window) => window !== null && window < sizes.maxSeq) ?? null;
  if (!window) {
    if (width !== null) throw unsupportedError('window', `no window in ${name}`, width);
    return {};
  }
  if (window === 'listed') {
    const slides = windows.map((layerWindow) => layerWindow !== null && width !== null);
    return {
      'attention.sliding_window': width ?? 0,
      'attention.sliding_window_pattern': slides,
    };
  }
  const every = window === 'all' ? 0 : window.fullEvery;
  const isFull = (i: number): boolean => every > 0 && (i + 1) % every === 0;
  if (width !== null && windows.some((window, i) => (window === null) !== isFull(i))) {
    throw unsupportedError(
      'window',
      every ? `every layer but each ${every}th` : 'all layers',
      windows,
    );
  }
  return { 'attention.sliding_window': width ?? 0 };
}
