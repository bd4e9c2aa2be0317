// Opens a GGUF file as a Hugging Face folder: a config.json from the metadata, and tensors under
// Hugging Face's names. Values stay in the file until they are needed.

import type { JsonObject } from '../../../types/json.js';
import {
  GgufFile,
  type GgufHeader,
  type GgufPart,
  type GgufTensor,
  type GgufValue,
  metadataTensor,
  WeightFiles,
} from '../../checkpoint/index.js';
import { DsError } from '../../errors.js';
import { formatJson } from '../../runtime/parse-json.js';
import { required } from '../../runtime/required.js';
import { keysOf } from '../../runtime/typed-keys.js';
import { numel } from '../../runtime/view.js';
import type { GgufArchitecture, GgufMixture } from './architecture.js';
import { ARCHITECTURES } from './architectures.js';
import { GgufKeys } from './keys.js';
import {
  type DeltaHeads,
  fitsShapes,
  type GgufRule,
  type LayoutSizes,
  OFFSET,
  SAME,
} from './layouts.js';
import { SIGMOID_GATE, SOFTMAX } from './mixtures.js';
import { chooseReader, findModelName, listRules, readExpertNames, STACKS } from './names.js';
import { readRope } from './read-rope.js';

/**
 * Opens `path`. Throws DS_CHECKPOINT for a damaged file, an unsupported architecture or type of
 * weights, and unknown tensors; DS_IO.
 */
export async function openGguf(path: string): Promise<WeightFiles> {
  let config: JsonObject = {};
  const file = await GgufFile.open(path, (header) => {
    const keys = GgufKeys.of(path, header);
    const names = new Set(header.tensors.map(({ name }) => name));
    const architecture = chooseReader(findArchitecture(keys), (name) => names.has(name));
    config = readConfig(architecture, keys, header);
    const file = { architecture, keys, header, sizes: readLayoutSizes(architecture, keys) };
    const parts = [
      ...header.tensors.flatMap((tensor) => listParts(file, tensor)),
      ...readLayerNumbers(architecture, keys),
    ];
    // Experts in MXFP4 have the names of Hugging Face's folders with such experts.
    if (parts.some(({ codes }) => codes)) config.quantization_config = { quant_method: 'mxfp4' };
    return parts;
  });
  return WeightFiles.ofGguf(file, config);
}

function findArchitecture(keys: GgufKeys): GgufArchitecture {
  const architecture = ARCHITECTURES.find(
    ({ name, matches }) => name === keys.architecture && (matches?.(keys) ?? true),
  );
  if (architecture) return architecture;
  const known = [...new Set(ARCHITECTURES.map(({ name }) => name))].join(', ');
  throw keys.keyError('general.architecture', known, keys.architecture);
}

function readConfig(
  architecture: GgufArchitecture,
  keys: GgufKeys,
  { tensors }: GgufHeader,
): JsonObject {
  const { mixture, numbers = {}, fixed = {}, epsilon, biasKey, parallelBy } = architecture;
  const has = (name: string): boolean => tensors.some((tensor) => tensor.name === name);
  const blocks = keys.size('block_count');
  if (blocks > tensors.length) {
    throw keys.keyError('block_count', `at most ${tensors.length}, the number of tensors`, blocks);
  }
  const experts = keys.number('expert_count', 0);
  if (experts > 0 && !mixture) throw keys.keyError('expert_count', '0', experts);
  const heads = keys.size('attention.head_count');
  const channels = keys.size('embedding_length');
  const latent = architecture.isLatent ? readLatent(keys) : null;
  const kinds = architecture.hasKinds ? readLayerKinds(keys, has) : null;
  const headDim =
    latent?.qk_rope_head_dim ??
    kinds?.headDim ??
    keys.number('attention.key_length', channels / heads);
  const [modelType] = architecture.modelTypes;
  const table = tensors.find(({ name }) => name === 'token_embd.weight');
  if (!latent && !kinds && keys.number('attention.value_length', headDim) !== headDim) {
    const got = keys.get('attention.value_length');
    throw keys.keyError('attention.value_length', `${headDim}, that of keys`, got);
  }
  const kvHeads = latent
    ? heads
    : (kinds?.kvHeads ?? keys.number('attention.head_count_kv', heads));
  if (heads % kvHeads !== 0) {
    throw keys.keyError('attention.head_count_kv', `a divisor of ${heads} heads`, kvHeads);
  }
  const numberEntries = Object.entries(numbers).map(
    ([key, name]) => [key, keys.positive(name)] as const,
  );
  const { keys: renamed = {}, more } = architecture;
  const config: JsonObject = {
    architectures: [experts ? mixture?.className : architecture.className] as string[],
    model_type: experts && mixture ? mixture.modelType : modelType,
    vocab_size: table?.shape[0] ?? keys.size('vocab_size'),
    hidden_size: channels,
    intermediate_size: kinds?.hidden ?? readHidden(keys),
    num_hidden_layers: countLayers(architecture, keys),
    num_attention_heads: heads,
    num_key_value_heads: kvHeads,
    head_dim: headDim,
    ...latent,
    ...kinds?.entries,
    ...(architecture.isDelta && readDelta(keys)),
    max_position_embeddings: keys.size('context_length'),
    ...(epsilon
      ? { [epsilon]: keys.positive('attention.layer_norm_epsilon') }
      : { rms_norm_eps: keys.positive('attention.layer_norm_rms_epsilon') }),
    tie_word_embeddings: !has('output.weight'),
    torch_dtype: readDType(tensors),
    attention_bias: has('blk.0.attn_q.bias') || has('blk.0.attn_qkv.bias'),
    mlp_bias: has('blk.0.ffn_up.bias'),
    ...(biasKey && { [biasKey]: has('blk.0.attn_q.bias') }),
    // llama.cpp also decides by the second norm of a block.
    ...(parallelBy === 'norm' && { use_parallel_residual: !has('blk.0.ffn_norm.weight') }),
    ...(parallelBy === 'key' && {
      use_parallel_residual: keys.flag('use_parallel_residual', true),
    }),
    ...(experts > 0 && mixture && readMixture(mixture, keys, experts)),
    ...Object.fromEntries(numberEntries),
    ...fixed,
    ...readRope(architecture, keys, headDim, tensors),
    ...readWindow(architecture, keys),
    ...readTokenIds(keys),
    ...more?.({ has, kvHeads, keys }),
  };
  return Object.fromEntries(
    Object.entries(config).map(([key, value]) => [renamed[key] ?? key, value]),
  );
}

/** Returns the width of feed-forward blocks. A file may lack it if all blocks have experts. */
const readHidden = (keys: GgufKeys): number =>
  keys.get('feed_forward_length') === null && keys.number('expert_count', 0) > 0
    ? keys.size('expert_feed_forward_length')
    : keys.size('feed_forward_length');

/** Returns the heads of gated delta nets. */
function readDeltaHeads(keys: GgufKeys): DeltaHeads {
  const heads = keys.size('ssm.time_step_rank');
  const inner = keys.size('ssm.inner_size');
  if (inner % heads !== 0) throw keys.keyError('ssm.inner_size', `a multiple of ${heads}`, inner);
  const keyHeads = keys.size('ssm.group_count');
  return { heads, keyHeads, keyDim: keys.size('ssm.state_size'), valueDim: inner / heads };
}

/** Returns the entries of config.json for gated delta nets. */
function readDelta(keys: GgufKeys): JsonObject {
  const { heads, keyHeads, keyDim, valueDim } = readDeltaHeads(keys);
  return {
    linear_num_value_heads: heads,
    linear_num_key_heads: keyHeads,
    linear_key_head_dim: keyDim,
    linear_value_head_dim: valueDim,
    linear_conv_kernel_dim: keys.size('ssm.conv_kernel'),
    full_attention_interval: keys.number('full_attention_interval', 0) || 4,
  };
}

/** Returns the entries of config.json for an architecture with layers of several kinds. */
function readLayerKinds(keys: GgufKeys, has: (tensor: string) => boolean) {
  const count = keys.size('block_count');
  const slides = readWindowLayers(keys, count);
  const perLayer = (key: string): readonly number[] => {
    const list = keys.list(key) ?? Array.from({ length: count }, () => keys.size(key));
    const isSize = (value: GgufValue): boolean => Number.isSafeInteger(value) && Number(value) > 0;
    if (list.length === count && list.every(isSize)) return list as readonly number[];
    throw keys.keyError(key, `a positive integer for each of ${count} layers`, list);
  };
  const [kv, hidden] = [perLayer('attention.head_count_kv'), perLayer('feed_forward_length')];
  const [sliding, full] = [slides.indexOf(true), slides.indexOf(false)];
  const shared = keys.number('attention.shared_kv_layers', 0);
  const isEqual = (layer: number): boolean =>
    has(`blk.${layer}.attn_k.weight`) && !has(`blk.${layer}.attn_v.weight`);
  const keysAsValues = full >= 0 && isEqual(full);
  const entries: JsonObject = {
    global_head_dim: keys.size('attention.key_length'),
    ...(keysAsValues && { num_global_key_value_heads: required(kv[full]) }),
    attention_k_eq_v: keysAsValues,
    num_kv_shared_layers: shared,
    use_double_wide_mlp: shared > 0 && hidden.at(-1) !== hidden[0],
    hidden_size_per_layer_input: keys.number('embedding_length_per_layer_input', 0),
    final_logit_softcapping: keys.number('final_logit_softcapping', 0) || null,
    enable_moe_block: keys.number('expert_count', 0) > 0,
  };
  return {
    headDim: keys.size('attention.key_length_swa'),
    kvHeads: required(kv[Math.max(sliding, 0)]),
    hidden: required(hidden[0]),
    entries,
  };
}

/**
 * Whether each layer has a window. Throws DS_CHECKPOINT unless the list has one boolean per layer.
 */
function readWindowLayers(keys: GgufKeys, count: number): readonly boolean[] {
  const key = 'attention.sliding_window_pattern';
  const every = Array.from({ length: count }, (_, i) => (i + 1) % 4 !== 0);
  const list = keys.list(key) ?? every;
  if (list.length === count && list.every((value) => typeof value === 'boolean')) {
    return list as readonly boolean[];
  }
  throw keys.keyError(key, `true or false for each of ${count} layers`, list);
}

/** Returns the entries of config.json for latent attention. */
function readLatent(keys: GgufKeys) {
  const rotary = keys.size('rope.dimension_count');
  // Older files have the widths of heads under the plain names.
  const length = (name: string): number =>
    keys.number(`attention.${name}_length_mla`, 0) || keys.size(`attention.${name}_length`);
  const key = length('key');
  if (key <= rotary) throw keys.keyError('attention.key_length', `more than ${rotary}`, key);
  return {
    q_lora_rank: keys.number('attention.q_lora_rank', 0) || null,
    kv_lora_rank: keys.size('attention.kv_lora_rank'),
    qk_nope_head_dim: key - rotary,
    qk_rope_head_dim: rotary,
    v_head_dim: length('value'),
  };
}

/** Returns the number of layers. Layers that predict later tokens do not count. */
function countLayers({ mixture }: GgufArchitecture, keys: GgufKeys): number {
  const [all, predicting] = [keys.size('block_count'), keys.number('nextn_predict_layers', 0)];
  if (predicting === 0) return all;
  if (mixture?.isSigmoid && Number.isInteger(predicting) && predicting < all) {
    return all - predicting;
  }
  throw keys.keyError('nextn_predict_layers', '0', predicting);
}

/** Returns the entries of config.json for experts. */
function readMixture(mixture: GgufMixture, keys: GgufKeys, experts: number): JsonObject {
  const { experts: key = 'num_experts', width, normalizes, isSigmoid, mayLead, shared } = mixture;
  const gate = isSigmoid ? SIGMOID_GATE : SOFTMAX;
  const gating = keys.number('expert_gating_func', gate);
  if (gating !== gate) {
    throw keys.keyError('expert_gating_func', isSigmoid ? '2, a sigmoid' : '1, a softmax', gating);
  }
  const groups = keys.number('expert_group_count', 1) || 1;
  if (groups > 1 && !mixture.hasGroups) throw keys.keyError('expert_group_count', '1', groups);
  return {
    [key]: experts,
    num_experts_per_tok: keys.size('expert_used_count'),
    ...(width && { [width]: keys.size('expert_feed_forward_length') }),
    ...(normalizes === 'key' && { norm_topk_prob: keys.flag('expert_weights_norm', false) }),
    ...((mixture.hasFactor ?? isSigmoid) && {
      routed_scaling_factor: keys.number('expert_weights_scale', 0) || 1,
    }),
    ...(mixture.hasGroups && {
      n_group: groups,
      topk_group: groups > 1 ? keys.size('expert_group_used_count') : 1,
      ...(groups > 1 && !isSigmoid && { topk_method: 'group_limited_greedy' }),
    }),
    ...(mayLead && { first_k_dense_replace: keys.number('leading_dense_block_count', 0) }),
    ...(shared === 'ungated' && { n_shared_experts: keys.size('expert_shared_count') }),
  };
}

/**
 * Returns the dtype of the weights: bf16 if matrices are packed into blocks or have several types.
 */
function readDType(tensors: readonly GgufTensor[]): string {
  const matrices = tensors.filter(({ shape }) => shape.length > 1);
  const [first, ...others] = new Set(matrices.map(({ type }) => type.dtype));
  const names: Readonly<Record<string, string>> = { f16: 'float16', f32: 'float32' };
  return (others.length === 0 && names[first ?? '']) || 'bfloat16';
}

/** Returns the ids of special tokens. */
function readTokenIds(keys: GgufKeys): JsonObject {
  const roles = { bos_token_id: 'bos', eos_token_id: 'eos', pad_token_id: 'padding' };
  const ids = Object.entries(roles).map(([key, name]) => {
    const id = keys.getFullKey(`tokenizer.ggml.${name}_token_id`);
    return [key, typeof id === 'number' ? id : null] as const;
  });
  return Object.fromEntries(ids);
}

function readWindow(
  { name, window, hasOffsetNorms }: GgufArchitecture,
  keys: GgufKeys,
): JsonObject {
  if (!window) return {};
  // llama.cpp needs the key also for models without a window; 0 stands for none.
  const width = keys.number('attention.sliding_window', 0);
  if (width === 0) return { sliding_window: null };
  if (window === 'all') return { sliding_window: width };
  const count = keys.size('block_count');
  const slides =
    window === 'listed'
      ? readWindowLayers(keys, count)
      : Array.from({ length: count }, (_, i) => (i + 1) % window.fullEvery !== 0);
  const types = slides.map((slides) => (slides ? 'sliding_attention' : 'full_attention'));
  const layers = { sliding_window: width, layer_types: types };
  if (!hasOffsetNorms) return layers;
  const scale = keys.number('attention.scale', 0);
  const headDim = keys.size('attention.key_length');
  // Of the Gemmas only the 27B models scale by another width than a head's.
  const is27B = keys.size('block_count') === (name === 'gemma2' ? 46 : 62);
  const wide = keys.size('embedding_length') / keys.size('attention.head_count');
  const scalar = scale > 0 ? scale ** -2 : is27B ? wide : headDim;
  return { ...layers, query_pre_attn_scalar: scalar };
}

/** Tensors that only the configuration uses, or that no model needs. */
const UNUSED_TENSORS = new Set([
  'rope_freqs.weight',
  'rope_factors_long.weight',
  'rope_factors_short.weight',
]);

/** A file, and its description. */
interface GgufSource {
  readonly architecture: GgufArchitecture;
  readonly keys: GgufKeys;
  readonly header: GgufHeader;
  readonly sizes: LayoutSizes;
}

/** Returns the numbers that decide the order of values. */
function readLayoutSizes(
  { isLatent, hasKinds, isDelta }: GgufArchitecture,
  keys: GgufKeys,
): LayoutSizes {
  const heads = keys.size('attention.head_count');
  if (isLatent) return { heads, kvHeads: heads, plainDim: readLatent(keys).qk_nope_head_dim };
  if (hasKinds) return { heads, kvHeads: heads };
  if (isDelta) return { heads, kvHeads: heads, delta: readDeltaHeads(keys) };
  return { heads, kvHeads: keys.number('attention.head_count_kv', heads) };
}

/**
 * Returns the numbers of blocks that the metadata has. Throws DS_CHECKPOINT unless each layer has a
 * number.
 */
function readLayerNumbers(
  { layerNumbers = [], blocks = 'model.layers' }: GgufArchitecture,
  keys: GgufKeys,
): GgufPart[] {
  const layers = keys.size('block_count');
  return layerNumbers.flatMap(({ modelName, shape, key }) => {
    const value = keys.getFullKey(key);
    const list = Array.isArray(value) ? value : Array.from({ length: layers }, () => value);
    if (list.length !== layers || !list.every(Number.isFinite)) {
      const op = `${keys.path}: ${key}`;
      const expected = `a number for each of ${layers} layers`;
      throw new DsError({ code: 'DS_CHECKPOINT', op, expected, got: formatJson(value) });
    }
    return list.map((value: number, layer) => ({
      name: `${blocks}.${layer}.${modelName}`,
      source: metadataTensor(key, shape, [value]),
      shape,
    }));
  });
}

/** Returns the tensors of the model in a tensor of the file. */
function listParts(file: GgufSource, source: GgufTensor): readonly GgufPart[] {
  const { architecture, keys } = file;
  if (UNUSED_TENSORS.has(source.name) || isPredicting(architecture, keys, source.name)) return [];
  const { hasOffsetNorms, plainNorm, blocks = 'model.layers' } = architecture;
  const [, layer, rest = ''] = /^blk\.(\d+)\.(.+)$/.exec(source.name) ?? [];
  const rule = listRules(architecture).find(({ fileNames }) => fileNames.includes(rest));
  if (rule && rule.fileNames[0] !== rest) return [];
  if (rule)
    return listPartsOfRule(rule, file, {
      source,
      layer,
      name: `${blocks}.${layer}.${rule.modelName}`,
    });
  const [, stem = '', suffix = ''] = /^(.*)\.(weight|bias)$/.exec(source.name) ?? [];
  const stack = findStackName(architecture, { stem, suffix });
  if (stack !== null) return listExperts(source, stack);
  const name = findModelName(architecture, stem);
  if (name === undefined) {
    const op = `${keys.path}: ${source.name}`;
    const expected = `tensors of ${architecture.name} models`;
    throw new DsError({ code: 'DS_CHECKPOINT', op, expected, got: `[${source.shape}]` });
  }
  const isNorm = suffix === 'weight' && stem.endsWith('norm');
  const isOffset = hasOffsetNorms && isNorm && !stem.endsWith(`.${plainNorm}`);
  const change = isOffset ? { change: OFFSET.read } : {};
  return [{ name: `${name}.${suffix}`, source, shape: source.shape, ...change }];
}

/**
 * The parts of a rule; `source` is the first of its tensors. Throws DS_CHECKPOINT if the file lacks
 * another one.
 */
function listPartsOfRule(
  { fileNames, layout = SAME, change }: GgufRule,
  { keys, header, sizes }: GgufSource,
  { source, layer, name }: { source: GgufTensor; layer: string | undefined; name: string },
): GgufPart[] {
  const further = fileNames.slice(1).map((rest) => {
    const tensor = header.tensors.find((one) => one.name === `blk.${layer}.${rest}`);
    if (tensor) return tensor;
    const op = `${keys.path}: ${source.name}`;
    const expected = `a tensor blk.${layer}.${rest} beside it`;
    throw new DsError({ code: 'DS_CHECKPOINT', op, expected, got: 'nothing' });
  });
  const shapes = [source, ...further].map(({ shape }) => shape);
  if (!fitsShapes(layout, shapes, sizes)) {
    throw new DsError({
      code: 'DS_CHECKPOINT',
      op: `${keys.path}: ${source.name}`,
      expected: `shapes for ${name}`,
      got: shapes.map((shape) => `[${shape}]`).join(' and '),
    });
  }
  const shape = layout.modelShape(shapes, sizes);
  if (layout.codes && [source, ...further].every(({ type }) => type.name === 'MXFP4')) {
    const rows = layout.codes.rows(shape);
    const groups = [...rows.slice(0, -1), required(rows.at(-1)) / source.type.values];
    const order = layout.codes.order?.(shape, required(groups.at(-1)));
    const common = { source, further, ...(order && { order }) };
    return [
      { name: `${name}_blocks`, shape: [...groups, 16], codes: 'blocks', ...common },
      { name: `${name}_scales`, shape: groups, codes: 'scales', ...common },
    ];
  }
  const order = layout.order?.(shape, sizes);
  return [
    {
      name,
      source,
      shape,
      ...(further.length > 0 && { further }),
      ...(order && { order }),
      ...(change && { change: change.read }),
    },
  ];
}

/** Returns whether a tensor belongs to a layer that predicts later tokens. */
function isPredicting(architecture: GgufArchitecture, keys: GgufKeys, name: string): boolean {
  const [, layer] = /^blk\.(\d+)\./.exec(name) ?? [];
  return layer !== undefined && Number(layer) >= countLayers(architecture, keys);
}

/** Returns Hugging Face's name of the router, or the pattern of an expert's matrix. */
function findStackName(
  architecture: GgufArchitecture,
  { stem, suffix }: { stem: string; suffix: string },
): string | null {
  const [, layer, rest] = /^blk\.(\d+)\.(.+)$/.exec(stem) ?? [];
  const kind = keysOf(STACKS).find((key) => STACKS[key] === rest);
  if (!kind || suffix !== 'weight') return null;
  const pattern = readExpertNames(architecture)[kind];
  return pattern === undefined ? null : `model.layers.${layer}.${pattern}.weight`;
}

/** The parts in a tensor of all experts, or the router. */
function listExperts(source: GgufTensor, pattern: string): GgufPart[] {
  const { shape: all } = source;
  if (!pattern.includes('*')) return [{ name: pattern, source, shape: all }];
  const [experts = 0, ...shape] = all;
  const each = numel(shape);
  return Array.from({ length: experts }, (_, i) => {
    return { name: pattern.replace('*', String(i)), source, shape, first: i * each };
  });
}
