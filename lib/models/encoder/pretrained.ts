// Reads and writes config.json of encoders, and maps the tensor names of Hugging Face's files.
import type { JsonObject, JsonValue } from '../../../types/json.js';
import type { Module } from '../../nn/module.js';
import type { PretrainedDescription } from '../../nn/pretrained-description.js';
import type { Layout } from '../load-weights.js';
import { MAX_LAYERS, type ModelConfig } from '../model-config.js';
import type { ModelFolder } from '../model-folder.js';
import {
  CLASS_ENDS,
  describeLabels,
  type HeadTask,
  hasLabels,
  parseLabels,
} from '../tasks/task.js';
import type { EncoderBodySizes, EncoderConfig } from './config.js';
import {
  BERT_EMBEDDING,
  BERT_KEYS,
  BERT_LAYER,
  type EncoderActivation,
  type EncoderTraits,
  POOLINGS,
} from './traits.js';

/** Activations by their names in config.json. A save writes the first name of an activation. */
const ACTIVATIONS: Readonly<Record<string, EncoderActivation>> = {
  gelu: 'gelu',
  gelu_new: 'geluTanh',
  gelu_pytorch_tanh: 'geluTanh',
  relu: 'relu',
  silu: 'silu',
  swish: 'silu',
};

/** Supported values of keys that change the computation. An absent key has the first value. */
const SUPPORTED: Readonly<Record<string, readonly JsonValue[]>> = {
  is_decoder: [false],
  add_cross_attention: [false],
  tie_word_embeddings: [true],
  quantization_config: [null],
};

const MAX_SEQ = 'max_position_embeddings';

/** Reads the sizes in a config.json. Throws DS_CHECKPOINT for a model with another computation. */
export function parseEncoderConfig(
  traits: EncoderTraits,
  folder: ModelFolder,
  task: HeadTask,
): EncoderConfig {
  const config = folder.config.withDefaults(traits.defaults ?? {});
  const { keys = BERT_KEYS, embedding = BERT_EMBEDDING } = traits;
  for (const [key, values] of Object.entries({ ...SUPPORTED, ...traits.only })) {
    config.requireOneOf(key, values);
  }
  config.requireOneOf(keys.activation, Object.keys(ACTIVATIONS));
  const layers = config.size(keys.layers, null, MAX_LAYERS);
  requireLayers(traits, folder, config, layers);
  const vocabSize = config.size('vocab_size');
  const padTokenId = parsePadding(config, vocabSize);
  const rows = config.size(MAX_SEQ, traits.positions === 'relative' ? 512 : null);
  const dropout = config.fraction(...keys.dropout);
  const channels = config.size(keys.channels);
  const sizes = {
    task,
    layers,
    channels,
    vocabSize,
    padTokenId,
    dropout,
    // The rows up to the padding row belong to no token.
    maxSeq: traits.positions === 'afterPadding' ? rows - padTokenId - 1 : rows,
    heads: config.size(keys.heads),
    hidden: config.size(keys.hidden),
    types: traits.types === 0 ? 0 : count(config, 'type_vocab_size', traits.types),
    embeddingSize: embedding.project ? config.size('embedding_size', channels) : channels,
    activation: ACTIVATIONS[config.get(keys.activation, 'gelu') as string] as EncoderActivation,
    eps: config.positive(...keys.eps),
    attentionDropout: config.fraction(...keys.attentionDropout),
    headDropout: config.fraction(keys.headDropout[0], keys.headDropout[1] ?? dropout),
    initializerRange: config.positive('initializer_range', 0.02),
  };
  return {
    ...sizes,
    ...(traits.positions === 'rotary' && rotaryKeys(config, layers)),
    ...(traits.positions === 'relative' && relativeKeys(config, rows)),
    ...(traits.pools && { pooling: parsePooling(config) }),
    ...(hasLabels(task) && parseLabels(config)),
  };
}

/** Throws DS_CHECKPOINT unless the files have the last layer. */
function requireLayers(
  { body, layer = BERT_LAYER }: EncoderTraits,
  { tensors }: ModelFolder,
  config: ModelConfig,
  layers: number,
): void {
  const last = `${layer.list}.${layers - 1}.${layer.out}.weight`;
  if (tensors.has(`${body}.${last}`) || tensors.has(last)) return;
  const expected = `weights of ${layers} layers`;
  throw config.refusalError('num_hidden_layers', expected, `none called ${body}.${last}`);
}

function parsePadding(config: ModelConfig, vocabSize: number): number {
  const id = config.get('pad_token_id', 0);
  if (Number.isInteger(id) && (id as number) >= 0 && (id as number) < vocabSize)
    return id as number;
  throw config.refusalError('pad_token_id', `a token below ${vocabSize}`, id);
}

function count(config: ModelConfig, key: string, fallback: number): number {
  return config.get(key, fallback) === 0 ? 0 : config.size(key, fallback);
}

const [FULL, SLIDING] = ['full_attention', 'sliding_attention'];

/** Reads angles and windows of ModernBERT, from the keys of transformers 5 or 4. */
function rotaryKeys(config: ModelConfig, layers: number): Partial<EncoderConfig> {
  const every = config.size('global_attn_every_n_layers', 3);
  const usual = Array.from({ length: layers }, (_, i) => (i % every === 0 ? FULL : SLIDING));
  const types = config.get('layer_types', usual as JsonValue);
  const isKnown = (type: JsonValue): boolean => type === FULL || type === SLIDING;
  if (!Array.isArray(types) || types.length !== layers || !types.every(isKnown)) {
    throw config.refusalError('layer_types', `${layers} of "${FULL}" or "${SLIDING}"`, types);
  }
  const width = Math.floor(config.size('local_attention', 128) / 2);
  const rope = config.section('rope_parameters');
  const parseTheta = (type: string, key: string, fallback: number): number => {
    const ownConfig = rope.section(type);
    ownConfig.requireOneOf('rope_type', ['default']);
    return ownConfig.positive('rope_theta', config.positive(key, fallback));
  };
  config.requireOneOf('rope_scaling', [null]);
  return {
    windows: types.map((type) => (type === SLIDING ? width : null)),
    ropeTheta: parseTheta(FULL as string, 'global_rope_theta', 160_000),
    windowRopeTheta: parseTheta(SLIDING as string, 'local_rope_theta', 10_000),
  };
}

/** Reads the relative positions of DeBERTa. */
function relativeKeys(config: ModelConfig, rows: number): Partial<EncoderConfig> {
  const max = config.get('max_relative_positions', -1);
  const maxDistance =
    typeof max === 'number' && max < 1 ? rows : config.size('max_relative_positions');
  const types = config.get('pos_att_type');
  const list = (typeof types === 'string' ? types.split('|') : types) as JsonValue;
  const isBoth =
    Array.isArray(list) && list.length === 2 && ['c2p', 'p2c'].every((text) => list.includes(text));
  if (!isBoth) throw config.refusalError('pos_att_type', '["p2c", "c2p"]', types);
  return { buckets: config.size('position_buckets', 256), maxDistance };
}

function parsePooling(config: ModelConfig): (typeof POOLINGS)[number] {
  config.requireOneOf('classifier_pooling', POOLINGS);
  return config.get('classifier_pooling', 'cls') as (typeof POOLINGS)[number];
}

/** Returns the current name of a tensor. Old files call the parameters of norms gamma and beta. */
const parseModernKeys = (name: string): string =>
  name
    .replace(/LayerNorm\.gamma$/, 'LayerNorm.weight')
    .replace(/LayerNorm\.beta$/, 'LayerNorm.bias');

/** Buffers of positions in old files. A load skips them. */
const BUFFER = /(^|\.)embeddings\.(position|token_type)_ids$/;

/**
 * Returns the layout of the files. Files may lack the prefix of the body, and may have heads of
 * other tasks. A head that the files lack keeps its initial values.
 */
export function encoderLayout({ body, embedding, layer }: EncoderTraits, model: Module): Layout {
  const stateNames = new Set(Object.keys(model.stateDict()));
  const { words } = embedding ?? BERT_EMBEDDING;
  const roots = [words, (layer ?? BERT_LAYER).list, 'embeddings'].map((path) => path.split('.')[0]);
  const belongsToBody = (name: string): boolean =>
    !name.startsWith(`${body}.pooler.`) && name.startsWith(`${body}.`);
  return {
    transposed: new Set(),
    head: { has: (name) => !belongsToBody(name), replaces: false },
    nameOf: (fileName) => {
      const name = parseModernKeys(fileName);
      if (BUFFER.test(name)) return null;
      if (stateNames.has(name)) return name;
      const inside = `${body}.${name}`;
      if (stateNames.has(inside)) return inside;
      if (belongsToBody(name)) return name;
      return roots.includes(name.split('.')[0] as string) && body !== name.split('.')[0]
        ? name
        : null;
    },
  };
}

/** Returns the config.json of the model for transformers. */
export function describeEncoder(body: EncoderBodySizes): PretrainedDescription {
  const { traits, task, labels } = body;
  const { keys = BERT_KEYS, embedding = BERT_EMBEDDING, positions } = traits;
  const act = Object.entries(ACTIVATIONS).find(([, kind]) => kind === body.activation);
  const config: JsonObject = {
    architectures: [`${traits.classes}${CLASS_ENDS[task]}`],
    model_type: traits.modelType,
    vocab_size: body.vocabSize,
    [MAX_SEQ]: positions === 'afterPadding' ? body.maxSeq + body.padTokenId + 1 : body.maxSeq,
    [keys.channels]: body.channels,
    [keys.layers]: body.layers,
    [keys.heads]: body.heads,
    [keys.hidden]: body.hidden,
    [keys.activation]: act?.[0] ?? 'gelu',
    [keys.eps[0]]: body.eps,
    [keys.dropout[0]]: body.dropout,
    [keys.attentionDropout[0]]: body.attentionDropout,
    [keys.headDropout[0]]: body.headDropout,
    ...(traits.types > 0 && { type_vocab_size: body.types }),
    ...(embedding.project && { embedding_size: body.embeddingSize }),
    ...(positions === 'rotary' && describeRotary(body)),
    ...(positions === 'relative' && {
      pos_att_type: ['p2c', 'c2p'],
      position_buckets: body.buckets,
      max_relative_positions: body.maxDistance,
      pooler_hidden_size: body.channels,
    }),
    ...(traits.pools && { classifier_pooling: body.pooling }),
    ...Object.fromEntries(
      Object.entries(traits.only ?? {}).map(([key, [value = null]]) => [key, value]),
    ),
    pad_token_id: body.padTokenId,
    initializer_range: body.initializerRange,
    ...(hasLabels(task) && describeLabels(labels)),
  };
  return { config, transposed: [] };
}

function describeRotary({ windows, ropeTheta, windowRopeTheta }: EncoderBodySizes): JsonObject {
  const width = windows.find((window) => window !== null) ?? 64;
  return {
    layer_types: windows.map((window) => (window === null ? FULL : SLIDING) as string),
    local_attention: 2 * width,
    rope_parameters: {
      [FULL as string]: { rope_type: 'default', rope_theta: ropeTheta },
      [SLIDING as string]: { rope_type: 'default', rope_theta: windowRopeTheta },
    },
  };
}
