// EAGLE-3 heads: one layer that predicts the token after the next from hidden states of the model.
import type { JsonObject } from '../../../types/json.js';
import { WeightFiles } from '../../checkpoint/index.js';
import { DsError } from '../../errors.js';
import { findOrPullFolder } from '../../hub/local-folder.js';
import type { CacheShape } from '../../models/caches.js';
import type { CausalLM, Places } from '../../models/index.js';
import { startFromFiles } from '../../models/load-weights.js';
import { ModelConfig } from '../../models/model-config.js';
import { type AttentionContext, RotaryAttention } from '../../models/rotary/attention.js';
import { type BodySizes, readRotaryConfig, toBody } from '../../models/rotary/config.js';
import { parseRotaryConfig } from '../../models/rotary/pretrained.js';
import { RotaryLM } from '../../models/rotary/rotary-lm.js';
import { RotaryTable } from '../../models/rotary/rotary-table.js';
import type { RotaryTraits } from '../../models/rotary/traits.js';
import type { LayerCache } from '../../nn/attention.js';
import { Embedding } from '../../nn/embedding.js';
import { joinAll } from '../../nn/joined-linears.js';
import { Linear, SwiGLU } from '../../nn/linear.js';
import { Module } from '../../nn/module.js';
import { RMSNorm } from '../../nn/norms.js';
import { formatValue } from '../../runtime/format-value.js';
import * as kernels from '../../runtime/kernels.generated.js';
import { required } from '../../runtime/required.js';
import { concat, held, indexSelect, Tensor } from '../../tensor/index.js';
import type { RunnerHooks } from './features.js';

const OP = 'initInference speculative.model';

const TRAITS: RotaryTraits = {
  name: 'EAGLE-3 head',
  modelType: 'llama',
  architecture: 'LlamaForCausalLMEagle3',
  biases: { qkv: 'attentionBias', out: 'attentionBias', mlp: 'mlpBias' },
  window: 'none',
  defaults: { max_position_embeddings: 2048 },
};

/** Attention over the concatenation of an embedding and a hidden state. */
class EagleAttention extends RotaryAttention {
  constructor(body: BodySizes) {
    super(body, { window: null, layer: 0 });
    const { channels, heads, kvHeads, headDim, qkvBias: bias } = body;
    for (const narrow of [this.q_proj, this.k_proj, this.v_proj]) {
      for (const parameter of narrow.parameters()) parameter.dispose();
    }
    const from = (count: number): Linear => new Linear(2 * channels, count * headDim, { bias });
    Object.assign(this, { q_proj: from(heads), k_proj: from(kvHeads), v_proj: from(kvHeads) });
  }
}

/** The only layer of a head, under the names of its files. */
class EagleLayer extends Module {
  readonly input_layernorm: RMSNorm;
  readonly hidden_norm: RMSNorm;
  readonly self_attn: EagleAttention;
  readonly post_attention_layernorm: RMSNorm;
  readonly mlp: SwiGLU;

  constructor(
    body: BodySizes,
    /** Whether the residual stream starts with the normalized feature. */
    private readonly normBeforeResidual: boolean,
  ) {
    super();
    const { channels, eps, hidden, mlpBias: bias } = body;
    this.input_layernorm = new RMSNorm(channels, eps);
    this.hidden_norm = new RMSNorm(channels, eps);
    this.self_attn = new EagleAttention(body);
    this.post_attention_layernorm = new RMSNorm(channels, eps);
    this.mlp = new SwiGLU(channels, hidden, { bias });
  }

  /** Embeddings and features [1, N, channels] to hidden states of this shape. */
  override forward(
    embedding: Tensor,
    features: Tensor,
    context: AttentionContext,
    cache: LayerCache | null,
  ): Tensor {
    const normed = this.hidden_norm.call(features);
    const residual = this.normBeforeResidual ? normed : features;
    const joined = concat([this.input_layernorm.call(embedding), normed], 2);
    const stream = residual.add(this.self_attn.call(joined, context, cache));
    return stream.add(this.mlp.call(this.post_attention_layernorm.call(stream)));
  }
}

/** Shape of a head, from its folder. */
interface HeadShape {
  readonly body: BodySizes;
  /** Width of the model's hidden states. */
  readonly modelWidth: number;
  /** Number of tokens that it can predict. */
  readonly tokens: number;
  readonly normBeforeResidual: boolean;
  /** Layers of the model whose inputs it reads, ascending. */
  readonly layers: readonly number[];
  readonly hasEmbedding: boolean;
  readonly hasOutput: boolean;
}

/**
 * The scores of the token after token i + 1 follow from the embedding of token i + 1 and the
 * feature of token i. The feature is `fc` of three hidden states of the model; while the head
 * drafts, it is its own hidden state. Sources: Li et al. 2025 (EAGLE-3); SafeAILab/EAGLE and vLLM
 * for names and options.
 */
export class EagleHead extends Module implements RunnerHooks {
  readonly fc: Linear;
  readonly midlayer: EagleLayer;
  readonly norm: RMSNorm;
  /** Absent if the head uses the model's output layer. */
  declare readonly lm_head?: Linear;
  /** Absent if the head uses the model's embedding. */
  declare readonly embed_tokens?: Embedding;
  readonly #model: RotaryLM;
  readonly #shape: HeadShape;
  readonly #rotary: RotaryTable;
  /** Index of each token of the model among the predicted tokens; null if they are the same. */
  #indices: Tensor | null = null;
  /** Reads the features of slots. */
  #features: ((slots: Tensor) => Tensor) | null = null;
  /** Features of the tokens of the running forward, [N, channels]. */
  #inputs: Tensor | null = null;
  /**
   * Hidden states at the ends of the last forward, in the first rows. The forward may be a recorded
   * one.
   */
  #outputs: Tensor | null = null;

  constructor(model: RotaryLM, shape: HeadShape) {
    super();
    const { body, modelWidth, tokens, normBeforeResidual, hasEmbedding, hasOutput } = shape;
    const { channels, eps, ropeScaling, maxSeq } = body;
    this.#model = model;
    this.#shape = shape;
    this.fc = new Linear(3 * modelWidth, channels, { bias: false });
    this.midlayer = new EagleLayer(body, normBeforeResidual);
    this.norm = new RMSNorm(channels, eps);
    if (hasOutput) Object.assign(this, { lm_head: new Linear(channels, tokens, { bias: false }) });
    if (hasEmbedding) {
      Object.assign(this, { embed_tokens: new Embedding(model.vocabSize, channels) });
    }
    this.#rotary = new RotaryTable(body, ropeScaling, maxSeq);
  }

  /** Number of scores. */
  get vocabSize(): number {
    return this.#model.vocabSize;
  }

  /** Length of a feature. */
  get width(): number {
    return this.#shape.body.channels;
  }

  /** Maximum number of tokens of a sequence. */
  get reach(): number {
    return this.#shape.body.maxSeq;
  }

  /** The layers of the model whose inputs it reads. */
  get layers(): readonly number[] {
    return this.#shape.layers;
  }

  cacheShape(): CacheShape {
    const { kvHeads = 1, headDim = 1 } = this.#shape.body;
    const { dtype, device } = this.fc.weight;
    return { layers: 1, kvHeads, headDim, dtype, device, recurrent: null };
  }

  /** Sets the source of features, and the tokens of the outputs; null: all tokens, in order. */
  connect(features: (slots: Tensor) => Tensor): void {
    this.#features = features;
  }

  around(slots: Tensor, places: Places, forward: (places: Places) => Tensor): Tensor {
    this.#inputs = this.#features?.(slots) ?? null;
    try {
      return forward(places);
    } finally {
      this.#inputs = null;
    }
  }

  /**
   * Returns scores [S, V] of the tokens that follow the tokens at indices `ends` [S] of `tokens`
   * [1, N].
   */
  logitsAfter(tokens: Tensor, places: Places, ends: Tensor): Tensor {
    const features = (this.#inputs as Tensor).unsqueeze(0);
    const hidden = this.forward(tokens, features, places);
    const last = indexSelect(hidden.reshape([-1, this.width]), 0, ends);
    const count = last.size(0);
    if (count > 0) kernels.copy({ in: last, out: this.outputsOf(count) });
    return this.computeScores(last);
  }

  /** Allocates the hidden states of the ends of `sequences` sequences. */
  reserve(sequences: number): void {
    const { dtype, device } = this.fc.weight;
    this.#outputs?.dispose();
    this.#outputs = held(() => Tensor.empty([sequences, this.width], dtype, device));
  }

  /** Returns the hidden states of the last forward's `count` ends, [count, channels]. */
  outputsOf(count: number): Tensor {
    return required(this.#outputs).narrow(0, 0, count);
  }

  /** Hidden states [1, N, channels] of tokens [1, N] and features, before the last norm. */
  override forward(tokens: Tensor, features: Tensor, places: Places): Tensor {
    const embedding = (this.embed_tokens ?? this.#model.tokenTable).call(tokens);
    const { positions, documents, angleLength, caches } = places;
    const angles = { length: angleLength ?? 1, like: features };
    const { cos, sin } = this.#rotary.lastingRows(required(places.reach), angles);
    const context = { cos, sin, ofWindows: null, positions, documents, loads: null };
    return this.midlayer.call(embedding, features, context, caches?.[0] ?? null);
  }

  /**
   * Returns scores for the model's whole vocabulary; -Infinity for tokens that the head cannot
   * predict.
   */
  private computeScores(hidden: Tensor): Tensor {
    const normed = this.norm.call(hidden);
    const scores = this.lm_head?.call(normed) ?? this.#model.logitsOf(normed);
    if (!this.#indices) return scores;
    const none = Tensor.empty([scores.size(0), 1], scores.dtype, scores.device);
    const all = concat([scores, none.fill_(Number.NEGATIVE_INFINITY)], 1);
    return indexSelect(all, 1, this.#indices).contiguous();
  }

  /**
   * Sets the tokens of the scores: score i belongs to token i + offsets[i]. Throws DS_CHECKPOINT
   * for a token outside the vocabulary.
   */
  predict(offsets: readonly number[]): void {
    const { tokens } = this.#shape;
    const indices = new Array<number>(this.vocabSize).fill(tokens);
    for (const [i, offset] of offsets.entries()) {
      const token = i + offset;
      if (Number.isInteger(token) && token >= 0 && token < this.vocabSize) {
        indices[token] = i;
        continue;
      }
      throw headError('d2t', `tokens below ${this.vocabSize}`, `token ${token} at ${i}`);
    }
    const { device } = this.fc.weight;
    this.#indices = held(() => Tensor.from(indices, { dtype: 'i64', device }));
  }

  /** Frees weights and tables. */
  dispose(): void {
    for (const parameter of this.parameters()) parameter.dispose();
    this.#rotary.release();
    this.#indices?.dispose();
    this.#outputs?.dispose();
    this.#outputs = null;
  }
}

/** Tensors in the files that are not parameters: the tokens that the head predicts. */
const TABLES: readonly string[] = ['d2t', 't2d'];

/** Returns the parameter for a name in the files; null for the tables of tokens. */
function parameterName(name: string): string | null {
  if (TABLES.includes(name)) return null;
  return name.replace(/^model\./, '').replace(/^layers\.0\./, 'midlayer.');
}

/**
 * Loads the EAGLE-3 head of a model from a folder or a name on the hub, onto the device and into
 * the dtype of the model. Rejects with DS_CONFIG for a model that it cannot serve, and with the
 * errors of fromPretrained().
 */
export async function openEagle(source: string, model: CausalLM): Promise<EagleHead> {
  if (!(model instanceof RotaryLM)) {
    const expected = 'null for the method "eagle3": the model has no rotary positions';
    throw new DsError({ code: 'DS_CONFIG', op: OP, expected, got: model.constructor.name });
  }
  const dir = await findOrPullFolder('initInference', source, { need: 'model' });
  const files = await WeightFiles.open(dir);
  let head: EagleHead | null = null;
  try {
    const names = new Set(Array.from(files.tensors.keys(), parameterName));
    const shape = readHeadShape(dir, files, names, model);
    head = new EagleHead(model, shape);
    const { device, dtype } = model.computesIn;
    const layout = { transposed: new Set<string>(), nameOf: parameterName };
    const offsets = files.tensors.has('d2t') ? await readNumbers(files, 'd2t') : null;
    await startFromFiles(head, files, { op: OP, layout, dtype });
    head.to(device, dtype).eval();
    joinAll(head);
    if (offsets) head.predict(offsets);
    return head;
  } catch (error) {
    head?.dispose();
    await files.close();
    throw error;
  }
}

async function readNumbers(files: WeightFiles, name: string): Promise<number[]> {
  const values = await files.read(name);
  try {
    return values.toArray();
  } finally {
    values.release();
  }
}

/**
 * Reads the config.json of a head. Throws DS_CHECKPOINT for another kind of head, DS_CONFIG for a
 * head of another model.
 */
function readHeadShape(
  dir: string,
  files: WeightFiles,
  names: ReadonlySet<string | null>,
  model: RotaryLM,
): HeadShape {
  if (!files.config) throw headError('config.json', 'the file', 'none');
  const config = new ModelConfig(`${dir}/config.json`, files.config as JsonObject, TRAITS.name);
  const eagleConfig = config.section('eagle_config');
  if (!names.has('fc.weight')) throw headError('weights', 'an EAGLE-3 head: fc.weight', 'none');
  config.requireOneOf('num_hidden_layers', [1]);
  eagleConfig.requireOneOf('use_aux_hidden_state', [true]);
  const folder = { config, tensors: { has: () => true } };
  const body = toBody(TRAITS, readRotaryConfig(TRAITS, parseRotaryConfig(TRAITS, folder)));
  const { channels: width, layers } = model.config;
  const modelWidth = config.size('target_hidden_size', body.channels);
  requireEqual('hidden size of the model', modelWidth, width);
  requireEqual('vocabulary', config.size('vocab_size'), model.vocabSize);
  const hasEmbedding = names.has('embed_tokens.weight');
  const hasOutput = names.has('lm_head.weight');
  if (!(hasEmbedding && hasOutput)) requireEqual('hidden size', body.channels, width);
  if (body.channels % 2 !== 0) throw headError('hidden_size', 'an even number', `${body.channels}`);
  const listed =
    eagleConfig.get('eagle_aux_hidden_state_layer_ids') ??
    config.get('eagle_aux_hidden_state_layer_ids');
  return {
    body,
    modelWidth,
    hasEmbedding,
    hasOutput,
    tokens: config.size('draft_vocab_size', model.vocabSize),
    normBeforeResidual: config.flag('norm_before_residual', false),
    layers: requireLayers(listed ?? [2, Math.floor(layers / 2), layers - 3], layers),
  };
}

function requireLayers(given: unknown, layers: number): number[] {
  const list = Array.isArray(given) ? given.map(Number).sort((a, b) => a - b) : [];
  const isGood = list.every((value) => Number.isInteger(value) && value >= 0 && value < layers);
  if (isGood && new Set(list).size === 3) return list;
  const expected = `three different layers below ${layers} (eagle_aux_hidden_state_layer_ids)`;
  throw headError('config.json', expected, formatValue(given));
}

function requireEqual(what: string, got: number, expected: number): void {
  if (got === expected) return;
  const hint = 'Choose a head that was trained for this model.';
  const fields = { expected: `a head with the ${what} ${expected}`, got: String(got), hint };
  throw new DsError({ code: 'DS_CONFIG', op: OP, ...fields });
}

function headError(what: string, expected: string, got: string): DsError {
  return new DsError({ code: 'DS_CHECKPOINT', op: `${OP} ${what}`, expected, got });
}
