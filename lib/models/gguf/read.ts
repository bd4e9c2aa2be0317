// Opens a GGUF file as a Hugging Face folder: a config.json from the metadata, and tensors under
// Hugging Face's names. Values stay in the file until they are needed.

import type { JsonObject } from '../../../types/json.js';
import {
  GgufFile,
  type GgufHeader,
  type GgufPart,
  type GgufTensor,
  WeightFiles,
} from '../../checkpoint/index.js';
import { DsError } from '../../errors.js';
import { formatValue } from '../../runtime/format-value.js';
import { required } from '../../runtime/required.js';
import { keysOf } from '../../runtime/typed-keys.js';
import { numel } from '../../runtime/view.js';
import { rotaryRule } from '../rotary/rope-scaling.js';
import type { GgufArchitecture, GgufMixture } from './architecture.js';
import {
  ARCHITECTURES,
  CHOICE_BIAS,
  expertNames,
  modelName,
  readerOf,
  STACKS,
} from './architectures.js';
import { GgufKeys } from './keys.js';
import { gateRows, joinedRows, pairedRow } from './rows.js';

/**
 * Opens `path`. Throws DS_CHECKPOINT for a damaged file, an unsupported architecture or type of
 * weights, and unknown tensors; DS_IO.
 */
export async function openGguf(path: string): Promise<WeightFiles> {
  let config: JsonObject = {};
  const file = await GgufFile.open(path, (header) => {
    const keys = GgufKeys.of(path, header);
    const names = new Set(header.tensors.map(({ name }) => name));
    const architecture = readerOf(architectureOf(keys), (name) => names.has(name));
    config = configOf(architecture, keys, header);
    return header.tensors.flatMap((tensor) => partsOf(architecture, keys, { tensor, header }));
  });
  return WeightFiles.ofGguf(file, config);
}

function architectureOf(keys: GgufKeys): GgufArchitecture {
  const found = ARCHITECTURES.find(({ name }) => name === keys.architecture);
  if (found) return found;
  const known = ARCHITECTURES.map(({ name }) => name).join(', ');
  throw keys.refusal('general.architecture', known, keys.architecture);
}

function configOf(
  architecture: GgufArchitecture,
  keys: GgufKeys,
  { tensors }: GgufHeader,
): JsonObject {
  const { mixture, numbers = {}, fixed = {}, epsilon, biasKey, parallelBy } = architecture;
  const has = (name: string): boolean => tensors.some((tensor) => tensor.name === name);
  const experts = keys.number('expert_count', 0);
  if (experts > 0 && !mixture) throw keys.refusal('expert_count', '0', experts);
  const heads = keys.size('attention.head_count');
  const channels = keys.size('embedding_length');
  const headDim = keys.number('attention.key_length', channels / heads);
  const [modelType] = architecture.modelTypes;
  const table = tensors.find(({ name }) => name === 'token_embd.weight');
  if (keys.number('attention.value_length', headDim) !== headDim) {
    const got = keys.get('attention.value_length');
    throw keys.refusal('attention.value_length', `${headDim}, that of keys`, got);
  }
  const kvHeads = keys.number('attention.head_count_kv', heads);
  if (heads % kvHeads !== 0) {
    throw keys.refusal('attention.head_count_kv', `a divisor of ${heads} heads`, kvHeads);
  }
  const own = Object.entries(numbers).map(([key, name]) => [key, keys.positive(name)] as const);
  const { keys: renamed = {}, more } = architecture;
  const config: JsonObject = {
    architectures: [experts ? mixture?.className : architecture.className] as string[],
    model_type: experts && mixture ? mixture.modelType : modelType,
    vocab_size: table?.shape[0] ?? keys.size('vocab_size'),
    hidden_size: channels,
    intermediate_size: keys.size('feed_forward_length'),
    num_hidden_layers: layersOf(architecture, keys),
    num_attention_heads: heads,
    num_key_value_heads: kvHeads,
    head_dim: headDim,
    max_position_embeddings: keys.size('context_length'),
    ...(epsilon
      ? { [epsilon]: keys.positive('attention.layer_norm_epsilon') }
      : { rms_norm_eps: keys.positive('attention.layer_norm_rms_epsilon') }),
    tie_word_embeddings: !has('output.weight'),
    torch_dtype: dtypeOf(tensors),
    attention_bias: has('blk.0.attn_q.bias') || has('blk.0.attn_qkv.bias'),
    mlp_bias: has('blk.0.ffn_up.bias'),
    ...(biasKey && { [biasKey]: has('blk.0.attn_q.bias') }),
    // llama.cpp also decides by the second norm of a block.
    ...(parallelBy === 'norm' && { use_parallel_residual: !has('blk.0.ffn_norm.weight') }),
    ...(parallelBy === 'key' && {
      use_parallel_residual: keys.flag('use_parallel_residual', true),
    }),
    ...(experts > 0 && mixture && mixtureOf(mixture, keys, experts)),
    ...Object.fromEntries(own),
    ...fixed,
    ...ropeOf(architecture, keys, headDim, tensors),
    ...windowOf(architecture, keys),
    ...tokensOf(keys),
    ...more?.({ has, kvHeads }),
  };
  return Object.fromEntries(
    Object.entries(config).map(([key, value]) => [renamed[key] ?? key, value]),
  );
}

/** Returns the number of layers. Layers that predict later tokens do not count. */
function layersOf({ mixture }: GgufArchitecture, keys: GgufKeys): number {
  const [all, predicting] = [keys.size('block_count'), keys.number('nextn_predict_layers', 0)];
  if (predicting === 0) return all;
  if (mixture?.isSigmoid && Number.isInteger(predicting) && predicting < all) {
    return all - predicting;
  }
  throw keys.refusal('nextn_predict_layers', '0', predicting);
}

/** Returns the entries of config.json for experts. */
function mixtureOf(mixture: GgufMixture, keys: GgufKeys, experts: number): JsonObject {
  const { experts: key = 'num_experts', width, normalizes, isSigmoid, mayLead, shared } = mixture;
  const gating = keys.number('expert_gating_func', isSigmoid ? SIGMOID : SOFTMAX);
  if (gating !== (isSigmoid ? SIGMOID : SOFTMAX)) {
    throw keys.refusal('expert_gating_func', isSigmoid ? '2, a sigmoid' : '1, a softmax', gating);
  }
  if (keys.number('expert_group_count', 1) > 1) {
    throw keys.refusal('expert_group_count', '1', keys.get('expert_group_count'));
  }
  return {
    [key]: experts,
    num_experts_per_tok: keys.size('expert_used_count'),
    ...(width && { [width]: keys.size('expert_feed_forward_length') }),
    ...(normalizes === 'key' && { norm_topk_prob: keys.flag('expert_weights_norm', false) }),
    ...(isSigmoid && { routed_scaling_factor: keys.number('expert_weights_scale', 0) || 1 }),
    ...(mayLead && { first_k_dense_replace: keys.number('leading_dense_block_count', 0) }),
    ...(shared === 'ungated' && { n_shared_experts: keys.size('expert_shared_count') }),
  };
}

/** llama.cpp's numbers of the scores of routers. */
const [SOFTMAX, SIGMOID] = [1, 2];

/**
 * Returns the dtype of the weights: bf16 if matrices are packed into blocks or have several types.
 */
function dtypeOf(tensors: readonly GgufTensor[]): string {
  const matrices = tensors.filter(({ shape }) => shape.length > 1);
  const [first, ...others] = new Set(matrices.map(({ type }) => type.dtype));
  const names: Readonly<Record<string, string>> = { f16: 'float16', f32: 'float32' };
  return (others.length === 0 && names[first ?? '']) || 'bfloat16';
}

/** Returns the ids of special tokens. */
function tokensOf(keys: GgufKeys): JsonObject {
  const roles = { bos_token_id: 'bos', eos_token_id: 'eos', pad_token_id: 'padding' };
  const found = Object.entries(roles).map(([key, name]) => {
    const id = keys.whole(`tokenizer.ggml.${name}_token_id`);
    return [key, typeof id === 'number' ? id : null] as const;
  });
  return Object.fromEntries(found);
}

function windowOf({ name, window }: GgufArchitecture, keys: GgufKeys): JsonObject {
  if (!window) return {};
  // llama.cpp needs the key also for models without a window; 0 stands for none.
  const width = keys.number('attention.sliding_window', 0);
  if (width === 0) return { sliding_window: null };
  if (window === 'all') return { sliding_window: width };
  const every = window.fullEvery;
  const types = Array.from({ length: keys.size('block_count') }, (_, i) =>
    (i + 1) % every === 0 ? 'full_attention' : 'sliding_attention',
  );
  const scale = keys.number('attention.scale', 0);
  const headDim = keys.size('attention.key_length');
  // Of the Gemmas only the 27B models scale by another width than a head's.
  const is27B = keys.size('block_count') === (name === 'gemma2' ? 46 : 62);
  const wide = keys.size('embedding_length') / keys.size('attention.head_count');
  const scalar = scale > 0 ? scale ** -2 : is27B ? wide : headDim;
  return { sliding_window: width, layer_types: types, query_pre_attn_scalar: scalar };
}

/** No model has wider heads; tables of angles have a number for each pair of channels. */
const MAX_HEAD = 2 ** 16;

function ropeOf(
  { name, hasRopeSection, lacksRope }: GgufArchitecture,
  keys: GgufKeys,
  headDim: number,
  tensors: readonly GgufTensor[],
): JsonObject {
  if (lacksRope) return {};
  const theta = keys.number('rope.freq_base', 10_000);
  const dim = keys.number('rope.dimension_count', headDim);
  if (!Number.isInteger(dim / 2) || dim < 2 || dim > headDim || headDim > MAX_HEAD) {
    const expected = `an even number up to the ${headDim} channels of a head, at most ${MAX_HEAD}`;
    throw keys.refusal('rope.dimension_count', expected, dim);
  }
  const partial: JsonObject = { partial_rotary_factor: dim / headDim };
  const scaling = scalingOf(keys, { theta, dim }, tensors);
  if (hasRopeSection) {
    const type = scaling ?? { rope_type: 'default' };
    return { rope_parameters: { ...type, rope_theta: theta, ...partial } };
  }
  if (name !== 'gemma3') return { rope_theta: theta, ...partial, rope_scaling: scaling };
  const full = { ...(scaling ?? { rope_type: 'default' }), rope_theta: theta };
  const local = keys.number('rope.freq_base_swa', 10_000);
  return {
    rope_parameters: {
      full_attention: full,
      sliding_attention: { rope_type: 'default', rope_theta: local },
    },
    rope_local_base_freq: local,
  };
}

function scalingOf(
  keys: GgufKeys,
  { theta, dim }: { theta: number; dim: number },
  tensors: readonly GgufTensor[],
): JsonObject | null {
  const type = keys.get('rope.scaling.type') ?? 'none';
  const factor = keys.number('rope.scaling.factor', 1);
  const original = keys.number('rope.scaling.original_context_length', 0);
  const values = (name: string): readonly number[] | null => {
    const tensor = tensors.find((tensor) => tensor.name === name);
    return tensor ? keys.read(tensor) : null;
  };
  const [long, short] = ['rope_factors_long.weight', 'rope_factors_short.weight'].map(values);
  if (long && short) {
    return {
      ...{ rope_type: 'longrope', long_factor: [...long], short_factor: [...short] },
      original_max_position_embeddings: original || keys.size('context_length'),
      ...(keys.get('rope.scaling.attn_factor') !== null && {
        attention_factor: keys.positive('rope.scaling.attn_factor'),
      }),
    };
  }
  const divisors = values('rope_freqs.weight');
  if (divisors) return llama3Of(keys, { theta, dim }, divisors);
  if (type === 'none' || (type === 'linear' && factor === 1)) return null;
  if (type === 'linear') return { rope_type: 'linear', factor };
  if (type === 'yarn') {
    return { rope_type: 'yarn', factor, original_max_position_embeddings: original };
  }
  throw keys.refusal('rope.scaling.type', 'none, linear or yarn', type);
}

/**
 * Returns the Llama 3 scaling with these divisors of frequencies. Files lack its four parameters.
 */
function llama3Of(
  keys: GgufKeys,
  { theta, dim }: { theta: number; dim: number },
  divisors: readonly number[],
): JsonObject {
  const factor = Math.max(...divisors);
  const sizes = { rotaryDim: dim, ropeTheta: theta };
  const plain = rotaryRule(sizes, null, 1).frequencies;
  for (let log = 13, step = 0; step < 32; ++step, log = 13 + (step & 1 ? -1 : 1) * (step >> 1)) {
    const originalMaxSeq = 2 ** Math.max(log, 1);
    const numbers = { factor, lowFreqFactor: 1, highFreqFactor: 4, originalMaxSeq };
    const found = rotaryRule(sizes, { type: 'llama3', ...numbers }, 1).frequencies;
    const isSame = found.every((frequency, i) => {
      const divisor = required(plain[i]) / frequency;
      return Math.abs(divisor - (divisors[i] ?? 0)) < 1e-4 * divisor;
    });
    if (!isSame) continue;
    return {
      ...{ rope_type: 'llama3', factor, low_freq_factor: 1, high_freq_factor: 4 },
      original_max_position_embeddings: originalMaxSeq,
    };
  }
  throw keys.refusal('rope_freqs.weight', 'the divisors of Llama 3', formatValue(divisors));
}

/** Tensors that only the configuration uses, or that no model needs. */
const CONSUMED = new Set([
  ...['rope_freqs.weight', 'rope_factors_long.weight', 'rope_factors_short.weight'],
]);

/** Returns the tensors of the model in a tensor of the file. */
function partsOf(
  architecture: GgufArchitecture,
  keys: GgufKeys,
  { tensor: source, header }: { tensor: GgufTensor; header: GgufHeader },
): readonly GgufPart[] {
  if (CONSUMED.has(source.name) || isPredicting(architecture, keys, source.name)) return [];
  const { hasOffsetNorms } = architecture;
  const [, stem = '', suffix = ''] = /^(.*)\.(weight|bias)$/.exec(source.name) ?? [];
  const stack = stackOf(architecture, { stem, suffix });
  if (stack !== null) return expertsIn(source, stack, header);
  const name = modelName(architecture, stem);
  if (name === undefined) {
    const op = `${keys.path}: ${source.name}`;
    const expected = `tensors of ${architecture.name} models`;
    throw new DsError({ code: 'DS_CHECKPOINT', op, expected, got: `[${source.shape}]` });
  }
  // A gate of the shared expert is a vector in the file.
  const isGate = stem.endsWith('.ffn_gate_inp_shexp');
  const shape = isGate && source.shape.length === 1 ? [1, ...source.shape] : source.shape;
  const rowOf = rowsOf(architecture, keys, { stem, rows: source.shape[0] ?? 1 });
  return [
    {
      ...{ name: `${name}.${suffix}`, source, shape },
      ...(rowOf && { rowOf }),
      ...(hasOffsetNorms && suffix === 'weight' && stem.endsWith('norm') && { add: -1 }),
    },
  ];
}

/** Whether a tensor belongs to a layer that predicts later tokens. */
function isPredicting(architecture: GgufArchitecture, keys: GgufKeys, name: string): boolean {
  const [, layer] = /^blk\.(\d+)\./.exec(name) ?? [];
  return layer !== undefined && Number(layer) >= layersOf(architecture, keys);
}

/** Returns the order of the file's rows, if it differs from the model's. */
function rowsOf(
  { isPaired, joined }: GgufArchitecture,
  keys: GgufKeys,
  { stem, rows }: { stem: string; rows: number },
): ((row: number) => number) | undefined {
  const heads = keys.size('attention.head_count');
  const kvHeads = keys.number('attention.head_count_kv', heads);
  if (joined && stem.endsWith('.attn_qkv')) {
    return joinedRows({ heads, kvHeads, dim: rows / (heads + 2 * kvHeads) });
  }
  const [, kind] = /\.attn_([qk])$/.exec(stem) ?? [];
  if (!isPaired || !kind) return undefined;
  const dim = rows / (kind === 'q' ? heads : kvHeads);
  return (row) => pairedRow(row, dim);
}

/** Returns Hugging Face's name of the router, or the pattern of an expert's matrix. */
function stackOf(
  architecture: GgufArchitecture,
  { stem, suffix }: { stem: string; suffix: string },
): string | null {
  const [, layer, rest] = /^blk\.(\d+)\.(.+)$/.exec(stem) ?? [];
  const { choiceBias } = architecture.mixture ?? {};
  if (rest === CHOICE_BIAS && choiceBias) return `model.layers.${layer}.${choiceBias}`;
  if (suffix !== 'weight') return null;
  const names = expertNames(architecture);
  const kind = keysOf(STACKS).find((key) => STACKS[key] === rest);
  if (!kind) return null;
  const own = names[kind] ?? (kind === 'gate' ? names.gateUp : '');
  return own === '' || own === undefined ? (own ?? null) : `model.layers.${layer}.${own}.weight`;
}

/** The parts in a tensor of all experts; an empty pattern: another tensor's part has it. */
function expertsIn(source: GgufTensor, pattern: string, { tensors }: GgufHeader): GgufPart[] {
  if (pattern === '') return [];
  const { name: stored, shape: all } = source;
  const [experts = 0, ...shape] = all;
  if (pattern.includes('*')) {
    const each = numel(shape);
    return Array.from({ length: experts }, (_, i) => {
      return { name: pattern.replace('*', String(i)), source, shape, first: i * each };
    });
  }
  const [width = 0, channels = 0] = shape;
  // ERNIE's files have a further dim of 1.
  if (pattern.includes('.moe_statics.')) return [{ name: pattern, source, shape: [1, ...all] }];
  const isGate = stored.includes(`.${STACKS.gate}.`);
  const up = isGate && tensors.find(({ name }) => name === stored.replace(STACKS.gate, STACKS.up));
  if (!isGate) return [{ name: pattern, source, shape: all }];
  if (!up || String(up.shape) !== String(all)) {
    throw new DsError({
      ...{ code: 'DS_CHECKPOINT', op: stored, expected: `${STACKS.up} of the shape [${all}]` },
      got: up ? `[${up.shape}]` : 'nothing',
    });
  }
  const [ofGate, ofUp] = [true, false].map((isGate) => gateRows(width, isGate));
  const rowOf = (row: number): number =>
    ofGate?.(row) ?? experts * width + required(ofUp?.(row) ?? null);
  return [{ name: pattern, source, further: [up], shape: [experts, 2 * width, channels], rowOf }];
}
