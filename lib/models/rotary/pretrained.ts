// Converts models with rotary positions to and from Hugging Face's config.json and tensor names.

import type { JsonObject, JsonValue } from '../../../types/json.js';
import type { SliceNames } from '../../checkpoint/index.js';
import type { PretrainedDescription } from '../../nn/pretrained-description.js';
import { required } from '../../runtime/required.js';
import { entriesOf } from '../../runtime/typed-keys.js';
import type { Layout } from '../load-weights.js';
import { MAX_LAYERS, type ModelConfig } from '../model-config.js';
import type { ModelFolder } from '../model-folder.js';
import { describeChunked, parseChunked } from './chunked-layers.js';
import {
  type LatentSizes,
  type RotaryConfig,
  type RotarySizes,
  readWindows,
  type Window,
} from './config.js';
import { describeConv, parseConv, parseFeedWidth } from './conv-config.js';
import { describeDelta, parseDelta } from './delta-config.js';
import { describeLayerKinds, parseLayerKinds, parseWidth } from './layer-kinds.js';
import { describeMamba, parseFeedLayers, parseMamba, withBlockTypes } from './mamba-config.js';
import {
  describeMoe,
  expertSlices,
  hasExperts,
  hasLoads,
  parseMoe,
  parseRouterLoss,
} from './mixture.js';
import { describeMultipliers, parseMultipliers } from './multipliers.js';
import { describeRope, describeRopeLayers, parseRope, parseRopeLayers } from './rope-keys.js';
import { describeScales, parseScales } from './scales.js';
import { PRE_NORMS, type RotaryTraits, SILU } from './traits.js';

/** Tables of angles and masks that old checkpoints store among the weights. */
const TABLE = /\.(?:rotary_emb\.inv_freq|(?:attention|attn)\.(?:masked_)?bias)$/;

/** Prefixes of the text model's tensors in multimodal files of transformers 5 and 4. */
const TEXT = /^(?:model\.(?:language|text)_model\.|language_model\.(?:model\.)?)/;
/** Tensors of multimodal files besides the text model. */
const NOT_TEXT =
  /^(?:model\.)?(?:(?:vision_tower|vision_model|audio_tower|embed_vision|embed_audio|connector|multi_modal_projector|mm_projector|visual)\.|image_newline$)/;
/** Projections and norms of keys and values. */
const KEYS_OF_LAYER = /^model\.layers\.(\d+)\.self_attn\.[kv]_(?:proj|norm)\./;
/** Choice of the keys in sparse attention. */
const INDEXER = /\.self_attn\.indexer\./;
/** Layers that predict later tokens, beside the model. */
const PREDICTOR = /^(?:model\.)?mtp(?:_layers)?\./;

/**
 * Returns this library's name for a tensor of a multimodal file; null if it is not part of the text
 * model.
 */
function toTextName(name: string): string | null {
  if (NOT_TEXT.test(name)) return null;
  const rest = name.replace(TEXT, '');
  return rest === name || rest.startsWith('lm_head.') ? rest : `model.${rest}`;
}

/** The name of a tensor of the body, which files may store without the names around it. */
function toFullName({ names = {}, norm = {}, positions }: RotaryTraits, name: string): string {
  const { model = 'model', embed = 'embed_tokens', layers = 'layers', embedNorm } = names;
  const [first] = name.split('.');
  const table = typeof positions === 'object' ? positions.table : undefined;
  const bodyNames = [embed, layers, norm.last ?? 'norm', embedNorm, table];
  return bodyNames.includes(first) ? `${model}.${name}` : name;
}

/** Files have this library's names and layouts, except for experts and multimodal models. */
export function rotaryLayout(traits: RotaryTraits, sizes: RotarySizes): Layout {
  const { layers } = sizes;
  const { textOf, hasPredictors = false } = traits;
  const isPredictor = (name: string): boolean =>
    hasPredictors !== false &&
    (PREDICTOR.test(name) ||
      (hasPredictors === true && Number(/^model\.layers\.(\d+)\./.exec(name)?.[1] ?? 0) >= layers));
  // Files may have projections of layers that read the keys and values of others.
  const firstReader = layers - (sizes.sharedKeys?.layers ?? 0);
  const isUnread = (name: string): boolean =>
    Number(KEYS_OF_LAYER.exec(name)?.[1] ?? -1) >= firstReader;
  return {
    transposed: new Set<string>(),
    slices: listSlices(traits, sizes),
    nameOf(name) {
      if (TABLE.test(name) || isPredictor(name)) return null;
      if (traits.denseUpTo && INDEXER.test(name)) return null;
      const text = textOf ? toTextName(name) : name;
      const own = text === null ? null : toFullName(traits, text);
      return own !== null && isUnread(own) ? null : own;
    },
  };
}

/** Returns the parameters that files store in slices or under other names. */
function listSlices(
  { moe: traits, files = {}, names = {}, oneBranch }: RotaryTraits,
  sizes: RotarySizes,
): SliceNames {
  const { moe, layers } = sizes;
  const renamed = Object.entries(files).flatMap(([own, theirs]) =>
    Array.from({ length: own.includes('*') ? layers : 1 }, (_, layer) => {
      const [name, file] = [own, theirs].map((text) => text.replace('*', String(layer)));
      return [name, [file]];
    }),
  );
  const { model = 'model', layers: list = 'layers', attention = '' } = names;
  const paths = { layers, list: `${model}.${list}`, block: oneBranch ? attention : 'mlp' };
  const experts = traits && moe ? expertSlices(traits, moe, paths) : {};
  return { ...Object.fromEntries(renamed), ...experts };
}

/**
 * Keys that change the computation, with their supported values. Absent keys have the first value.
 */
const SUPPORTED: Record<string, readonly JsonValue[]> = {
  pretraining_tp: [1],
  is_causal: [true],
  is_encoder_decoder: [false],
  add_cross_attention: [false],
  use_bidirectional_attention: [false],
  qkv_bias: [true],
  quantization_config: [null],
  compression_config: [null],
};

/** Reads the sizes in a config.json. Throws DS_CHECKPOINT for a model with another computation. */
export function parseRotaryConfig(traits: RotaryTraits, folder: ModelFolder): RotaryConfig {
  const aliased = folder.config.alias(traits.others ?? {});
  const listed = withBlockTypes(traits, aliased);
  const config = listed.rename(traits.keys ?? {}).withDefaults(defaultsOf(traits, listed));
  const { activation: { key: act = 'hidden_act', names } = SILU, norm = {} } = traits;
  const supported = { ...SUPPORTED, [act]: names, ...traits.only };
  for (const [key, values] of Object.entries(supported)) config.requireOneOf(key, values);
  const layers = config.size('num_hidden_layers', null, MAX_LAYERS);
  requireLayerType(traits, config);
  const { attention, mlp } = norm.block ?? PRE_NORMS;
  const { model = 'model', layers: list = 'layers' } = traits.names ?? {};
  const norm1 =
    norm.kind === 'plain' || norm.kind === 'bareRms'
      ? 'self_attn.q_proj'
      : (attention[0] ?? attention[1] ?? mlp[0]);
  const normName = `${model}.${list}.*.${norm1}.weight`;
  const last = (traits.files?.[normName] ?? normName).replace('*', String(layers - 1));
  const [epsKey, eps] = norm.eps ?? EPS;
  const others = [
    ...(traits.textOf
      ? [
          `language_model.${last}`,
          ...['language', 'text'].map((kind) => last.replace('.', `.${kind}_model.`)),
        ]
      : []),
    last.slice(model.length + 1),
  ];
  if (![last, ...others].some((name) => folder.tensors.has(name))) {
    throw config.refusalError(
      'num_hidden_layers',
      `weights of ${layers} layers`,
      `none called ${last}`,
    );
  }
  const [channels, heads] = [config.size('hidden_size'), config.size('num_attention_heads')];
  // Some files have null, which counts as absent.
  const declared = config.size('max_position_embeddings', fallbackSeq(traits));
  const vocabSize = config.size('vocab_size');
  // transformers ignores the keys of families with the three projections by head.
  const keyHeads = hasOwnHeads(traits) ? heads : config.size('num_key_value_heads', heads);
  const kvHeads = traits.keyHeads ?? keyHeads;
  const wide = parseHeadDim(traits, config, channels / heads);
  const window = parseWindow(traits, config, layers);
  const isFull = readWindows({ ...window, layers }).map((window) => window === null);
  const rotating = parseRopeLayers(traits, config, layers);
  return {
    layers,
    channels,
    heads,
    vocabSize,
    hidden: traits.conv ? parseFeedWidth(config) : parseWidth(traits, config, channels),
    kvHeads,
    ...wide,
    eps: config.positive(epsKey, eps),
    initializerRange: config.positive('initializer_range', 0.02),
    tied: config.flag('tie_word_embeddings', false),
    attentionDropout: config.fraction('attention_dropout', 0),
    padTokenId: parsePadding(config, vocabSize),
    ...parseBiases(traits, config),
    ...window,
    ...parseLayerKinds(traits, config, { kvHeads, headDim: wide.headDim ?? 0, vocabSize, isFull }),
    ...(hasExperts(traits.moe, config) && {
      moe: parseMoe(required(traits.moe), config, layers),
      ...(hasLoads(required(traits.moe)) && { routerAuxLossCoef: parseRouterLoss(config) }),
    }),
    ...limitSeq(
      readDenseSeq(traits, config),
      traits.positions ? { maxSeq: declared } : parseRope(traits, config, declared),
    ),
    ...rotating,
    ...parseChunked(traits, config, rotating),
    ...(traits.delta && { delta: parseDelta(config, layers) }),
    ...(traits.conv && { conv: parseConv(config, layers) }),
    ...(traits.mamba && { mamba: parseMamba(traits.mamba, config, { layers, channels }) }),
    ...parseFeedLayers(traits, config, layers),
    ...parseScales(traits, config),
    ...(traits.multipliers && { multipliers: parseMultipliers(config) }),
    ...(traits.parallel?.key && { parallel: config.flag(...traits.parallel.key) }),
    ...(traits.sums && {
      sumNorms: !config.flag(...traits.sums.key),
      embedDim: config.size(traits.sums.width, channels),
    }),
    ...(traits.qkNormKey && { qkNorm: config.flag(...traits.qkNormKey) }),
    ...(traits.residualDropout && { residualDropout: config.fraction(traits.residualDropout, 0) }),
  };
}

/** Returns the defaults of absent keys, which may depend on model_type. */
const defaultsOf = (
  { defaults, alsoTypes = {} }: RotaryTraits,
  config: ModelConfig,
): JsonObject => ({ ...defaults, ...alsoTypes[String(config.get('model_type'))] });

/** Returns the longest sequence whose sparse attention is dense; null: attention is dense. */
export function readDenseSeq(traits: RotaryTraits, file: ModelConfig): number | null {
  const { denseUpTo } = traits;
  const config = file.withDefaults(defaultsOf(traits, file));
  return denseUpTo && config.get(denseUpTo) !== null ? config.size(denseUpTo) : null;
}

const limitSeq = <T extends { maxSeq: number }>(most: number | null, sizes: T): T =>
  most === null ? sizes : { ...sizes, maxSeq: Math.min(sizes.maxSeq, most) };

function requireLayerType({ layerTypes: supported }: RotaryTraits, config: ModelConfig): void {
  const types = config.get('layer_types', []);
  if (
    !supported ||
    (Array.isArray(types) && types.every((type) => supported.includes(String(type))))
  )
    return;
  throw config.refusalError('layer_types', `"${supported[0]}" only`, types);
}

const fallbackSeq = ({ defaults }: RotaryTraits): number | null => {
  const { max_position_embeddings: length } = defaults;
  return typeof length === 'number' ? length : null;
};

/** Whether each query head has its own key and value head. */
const hasOwnHeads = ({ perHead, perGroup, latent, positions }: RotaryTraits): boolean =>
  (perHead !== undefined && !perGroup) || latent === true || positions !== undefined;

/** Keys of the widths of latent attention. */
const LATENT_KEYS: Readonly<Record<keyof LatentSizes, string>> = {
  queryRank: 'q_lora_rank',
  keyRank: 'kv_lora_rank',
  plainDim: 'qk_nope_head_dim',
  rotaryDim: 'qk_rope_head_dim',
  valueDim: 'v_head_dim',
};

function parseHeadDim(
  { perHead, latent }: RotaryTraits,
  config: ModelConfig,
  fallback: number,
): Pick<RotaryConfig, 'headDim' | 'latent'> {
  if (!latent) return { headDim: perHead ? fallback : config.size('head_dim', fallback) };
  const entries = Object.entries(LATENT_KEYS).map(([name, key]) => {
    const isNone = name === 'queryRank' && config.get(key) === null;
    return [name, isNone ? null : config.size(key)];
  });
  return { latent: Object.fromEntries(entries) };
}

function describeHeads(
  { perHead, perGroup, latent }: RotaryTraits,
  { heads, kvHeads, headDim, latent: widths }: RotarySizes,
): JsonObject {
  if (perHead) return perGroup ? { num_key_value_heads: kvHeads } : {};
  if (!latent || !widths) return { num_key_value_heads: kvHeads, head_dim: headDim };
  const entries = Object.entries(LATENT_KEYS);
  const widthEntries = entries.map(([name, key]) => [key, widths[name as keyof LatentSizes]]);
  return { num_key_value_heads: heads, ...Object.fromEntries(widthEntries) };
}

/** A row of the embedding; negative values count from the end, as in PyTorch. */
function parsePadding(config: ModelConfig, vocabSize: number): number | null {
  const id = config.get('pad_token_id');
  if (id === null) return null;
  if (typeof id === 'number' && Number.isInteger(id) && id < vocabSize && id >= -vocabSize) {
    return id;
  }
  throw config.refusalError('pad_token_id', `a token below ${vocabSize}`, id);
}

/** Key and default of most families. */
const EPS = ['rms_norm_eps', 1e-6] as const;

type BiasOption = 'attentionBias' | 'mlpBias';

/** The options of biases that the family lets a folder choose, and their keys. */
function biasKeys({ biases }: RotaryTraits): [BiasOption, string][] {
  const { qkv, out, mlp, key = 'attention_bias' } = biases;
  const switchNames = new Set<unknown>([qkv, out, mlp]);
  const keys: Record<BiasOption, string> = { attentionBias: key, mlpBias: 'mlp_bias' };
  return entriesOf(keys).filter(([option]) => switchNames.has(option));
}

/** transformers ignores the keys of biases that the family fixes. */
function parseBiases(traits: RotaryTraits, config: ModelConfig): Partial<RotaryConfig> {
  const fallback = (key: string): boolean => traits.defaults[key] === true;
  return Object.fromEntries(
    biasKeys(traits).map(([option, key]) => [option, config.flag(key, fallback(key))]),
  );
}

const WINDOW_KEY = 'sliding_window';
const SWITCH_KEY = 'use_sliding_window';
const [FULL, SLIDING] = ['full_attention', 'sliding_attention'];

/** Whether config.json may disable its window. */
const isSwitched = (traits: RotaryTraits): boolean =>
  (traits.window === 'layers' &&
    !traits.windowEvery &&
    !traits.attentionTypes &&
    !traits.unswitched) ||
  SWITCH_KEY in traits.defaults;

function parseWindow(
  traits: RotaryTraits,
  config: ModelConfig,
  layers: number,
): { window?: Window | Window[] } {
  const { window: kind } = traits;
  if (kind === 'none') {
    config.requireOneOf(WINDOW_KEY, [null]);
    return {};
  }
  const isUsed = !isSwitched(traits) || config.flag(SWITCH_KEY, false);
  const width = isUsed && config.get(WINDOW_KEY) !== null ? config.size(WINDOW_KEY) : null;
  if (width !== null && config.get(SWITCH_KEY, true) !== true) {
    const expected = `true or no value with a ${WINDOW_KEY}`;
    const hint = `${traits.architecture} has no such key: set ${WINDOW_KEY} to null for attention without a window, or remove ${SWITCH_KEY}.`;
    throw config.refusalError(SWITCH_KEY, expected, config.get(SWITCH_KEY), hint);
  }
  if (kind === 'uniform') return { window: width };
  const listed =
    parseTypes(traits, config) ??
    config.get('layer_types') ??
    defaultTypes(traits, config, layers, width);
  // transformers replaces the last type of Gemma 4.
  const types =
    traits.layerKinds && !traits.altUp && Array.isArray(listed)
      ? [...listed.slice(0, -1), FULL]
      : listed;
  const isKnown = (type: JsonValue): boolean =>
    type === FULL || (type === SLIDING && width !== null);
  if (!Array.isArray(types) || types.length !== layers || !types.every(isKnown)) {
    const knownTypes = width === null ? `"${FULL}"` : `"${FULL}" or "${SLIDING}"`;
    throw config.refusalError('layer_types', `${layers} of ${knownTypes}`, types);
  }
  const windows = types.map((type) => (type === SLIDING ? width : null));
  return { window: windows.every((window) => window === null) ? null : windows };
}

/** Returns the kinds of all layers by attention_types, lists of names with repetition counts. */
function parseTypes({ attentionTypes: names }: RotaryTraits, config: ModelConfig): JsonValue {
  const attentionTypes = config.get('attention_types');
  if (!names || attentionTypes === null) return null;
  const kinds: Readonly<Record<string, JsonValue>> = {
    [names.full]: FULL,
    [names.window]: SLIDING,
  };
  const isList = (entry: JsonValue): entry is [JsonValue[], number] =>
    Array.isArray(entry) &&
    Array.isArray(entry[0]) &&
    typeof entry[1] === 'number' &&
    entry[1] <= MAX_LAYERS;
  if (!Array.isArray(attentionTypes) || !attentionTypes.every(isList)) {
    throw config.refusalError('attention_types', 'lists of names and numbers', attentionTypes);
  }
  return attentionTypes.flatMap(([list, times]) =>
    Array.from({ length: times }, () => list.map((name) => kinds[String(name)] ?? name)).flat(),
  );
}

/** transformers' default without a list. */
function defaultTypes(
  { slidesAt = (layer, first) => layer >= first, windowEvery }: RotaryTraits,
  config: ModelConfig,
  layers: number,
  width: Window,
): string[] {
  if (windowEvery) {
    const [key, fallback] = windowEvery;
    const pattern = key === null ? null : config.get(key);
    const isPattern = typeof pattern === 'string' && /^[LG]+$/.test(pattern);
    const every = key === null || isPattern ? fallback : config.size(key, fallback);
    const isLocal = (i: number): boolean =>
      isPattern ? i + 1 < layers && pattern[i % pattern.length] === 'L' : (i + 1) % every !== 0;
    const slides = (i: number): boolean => width !== null && isLocal(i);
    return Array.from({ length: layers }, (_, i) => (slides(i) ? SLIDING : FULL));
  }
  const first = config.get('max_window_layers', layers);
  if (typeof first !== 'number' || !Number.isInteger(first) || first < 0) {
    throw config.refusalError('max_window_layers', 'a number of layers', first);
  }
  return Array.from({ length: layers }, (_, i) =>
    width !== null && slidesAt(i, first) ? SLIDING : FULL,
  );
}

/** Returns the description of the model for transformers. */
export function describeRotary(traits: RotaryTraits, sizes: RotarySizes): PretrainedDescription {
  const { activation: { key: act = 'hidden_act', names } = SILU, norm = {}, parallel } = traits;
  const biases = biasKeys(traits).map(([option, key]) => [key, sizes[option] ?? false]);
  const config: JsonObject = {
    architectures: [traits.architecture],
    model_type: traits.modelType,
    vocab_size: sizes.vocabSize,
    hidden_size: sizes.channels,
    intermediate_size: sizes.hidden,
    num_hidden_layers: sizes.layers,
    num_attention_heads: sizes.heads,
    ...describeHeads(traits, sizes),
    [act]: required(names[0]),
    [(norm.eps ?? EPS)[0]]: sizes.eps,
    ...(traits.positions ? { max_position_embeddings: sizes.maxSeq } : describeRope(traits, sizes)),
    ...describeRopeLayers(traits, sizes),
    ...Object.fromEntries(biases),
    ...describeWindow(traits, sizes),
    ...describeChunked(traits, sizes),
    ...describeScales(traits, sizes.scales),
    ...(sizes.multipliers && describeMultipliers(sizes.multipliers)),
    ...(sizes.delta && describeDelta(sizes.delta)),
    ...(sizes.conv && describeConv(sizes.conv)),
    ...(traits.mamba && describeMamba(traits.mamba, sizes.mamba ?? null, sizes)),
    ...describeLayerKinds(traits, sizes),
    ...(parallel?.key && { [parallel.key[0]]: sizes.parallel ?? parallel.key[1] }),
    ...(traits.sums && {
      [traits.sums.key[0]]: !sizes.sumNorms,
      [traits.sums.width]: sizes.embedDim ?? sizes.channels,
    }),
    ...(traits.qkNormKey && { [traits.qkNormKey[0]]: sizes.qkNorm ?? traits.qkNormKey[1] }),
    // transformers' DeepseekV2Config refuses an integer; 0 is the default everywhere.
    ...(sizes.attentionDropout > 0 && { attention_dropout: sizes.attentionDropout }),
    ...(traits.residualDropout && { [traits.residualDropout]: sizes.residualDropout ?? 0 }),
    pad_token_id: sizes.padTokenId,
    initializer_range: sizes.initializerRange,
    tie_word_embeddings: sizes.tied,
    ...(traits.moe?.optional && !sizes.moe && { [traits.moe.experts[0]]: 0 }),
    ...(traits.moe &&
      sizes.moe &&
      describeMoe(traits.moe, sizes.moe, {
        routerLoss: sizes.routerAuxLossCoef ?? 0,
        layers: sizes.layers,
      })),
    ...(traits.layerTypes && { layer_types: Array(sizes.layers).fill(traits.layerTypes[0]) }),
    ...traits.written,
  };
  const { keys = {} } = traits;
  const configEntries = Object.entries(config).map(([key, value]) => [keys[key] ?? key, value]);
  const slices = listSlices(traits, sizes);
  const isPlain = Object.keys(slices).length === 0;
  return {
    config: Object.fromEntries(configEntries),
    transposed: [],
    ...(!isPlain && { pieces: slices as unknown as JsonObject }),
  };
}

function describeWindow(traits: RotaryTraits, sizes: RotarySizes): JsonObject {
  const windows = readWindows(sizes);
  const width = windows.find((window) => window !== null) ?? null;
  if (traits.window === 'none') return {};
  if (traits.window === 'uniform') {
    return { ...(isSwitched(traits) && { [SWITCH_KEY]: width !== null }), [WINDOW_KEY]: width };
  }
  const { attentionTypes: names } = traits;
  if (names) {
    const types = windows.map((window) => (window === null ? names.full : names.window));
    return {
      [WINDOW_KEY]: width ?? Number(traits.defaults[WINDOW_KEY]),
      attention_types: [[types, 1]],
      attention_layers: types,
    };
  }
  const first = windows.findIndex((window) => window !== null);
  return {
    [WINDOW_KEY]: width,
    ...(isSwitched(traits) && {
      [SWITCH_KEY]: width !== null,
      max_window_layers: first < 0 ? windows.length : first,
    }),
    layer_types: windows.map((window) => (window === null ? FULL : SLIDING)),
  };
}
