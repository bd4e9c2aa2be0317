// Llama 2 and 3 with the parameter names of Hugging Face's LlamaForCausalLM.
import type { KeyValueCache } from '../../nn/attention.js';
import { normal, zeros } from '../../nn/initializers.js';
import { Embedding, Linear, RMSNorm, SwiGLU } from '../../nn/layers.js';
import { Module, type PretrainedDescription } from '../../nn/module.js';
import {
  addRmsNorm,
  attention,
  checkpointSequential,
  rope,
  scope,
  type Tensor,
} from '../../tensor/index.js';
import { CausalLM } from '../causal-lm.js';
import { type Family, readPretrained } from '../model-folder.js';
import { TiedHead } from '../tied-head.js';
import { type LlamaConfig, type LlamaOptions, type LlamaSizes, readLlamaConfig } from './config.js';
import { describeLlama, LLAMA_FOLDERS, parseLlamaConfig } from './pretrained.js';
import { type Angles, RotaryTable } from './rotary.js';

const BIASLESS = { bias: false };

/** Attention with rotary positions; several heads of queries share one of keys and values. */
export class LlamaAttention extends Module {
  /** From channels to heads * headDim. */
  readonly q_proj: Linear;
  /** From channels to kvHeads * headDim. */
  readonly k_proj: Linear;
  /** From channels to kvHeads * headDim. */
  readonly v_proj: Linear;
  /** From heads * headDim back to channels. */
  readonly o_proj: Linear;

  constructor(private readonly sizes: LlamaSizes) {
    super();
    const { channels, heads, kvHeads, headDim, attentionBias: bias } = sizes;
    this.q_proj = new Linear(channels, heads * headDim, { bias });
    this.k_proj = new Linear(channels, kvHeads * headDim, { bias });
    this.v_proj = new Linear(channels, kvHeads * headDim, { bias });
    this.o_proj = new Linear(heads * headDim, channels, { bias });
  }

  /** x [B, T, C], at the positions of `angles`; with a cache, the tokens after those it holds. */
  override forward(x: Tensor, { cos, sin }: Angles, cache: KeyValueCache | null): Tensor {
    const [B, T] = x.shape as [number, number];
    const { headDim } = this.sizes;
    const headsOf = (projection: Linear): Tensor => projection.call(x).reshape([B, T, -1, headDim]);
    const q = rope(headsOf(this.q_proj), cos, sin).transpose(1, 2);
    const newKeys = rope(headsOf(this.k_proj), cos, sin).transpose(1, 2);
    const newValues = headsOf(this.v_proj).transpose(1, 2);
    const [k, v] = cache ? cache.append(newKeys, newValues) : [newKeys, newValues];
    const mixed = attention(q, k, v, { causal: true });
    return this.o_proj.call(mixed.transpose(1, 2).reshape([B, T, -1]));
  }
}

/**
 * A pre-norm block. The residual stream runs beside the last branch, not yet added to it: the
 * addition happens inside the next normalisation.
 */
export class LlamaBlock extends Module {
  /** Before the attention. */
  readonly input_layernorm: RMSNorm;
  /** Causal attention with rotary positions. */
  readonly self_attn: LlamaAttention;
  /** Before the MLP. */
  readonly post_attention_layernorm: RMSNorm;
  /** The gated feed-forward block. */
  readonly mlp: SwiGLU;

  constructor(sizes: LlamaSizes) {
    super();
    const { channels, hidden, eps, mlpBias: bias } = sizes;
    this.input_layernorm = new RMSNorm(channels, eps);
    this.self_attn = new LlamaAttention(sizes);
    this.post_attention_layernorm = new RMSNorm(channels, eps);
    this.mlp = new SwiGLU(channels, hidden, { bias });
  }

  /**
   * The stream is branch + residual, or branch alone when residual is null; returns the next pair.
   */
  override forward(
    branch: Tensor,
    residual: Tensor | null,
    angles: Angles,
    cache: KeyValueCache | null = null,
  ): [Tensor, Tensor] {
    const [stream, x] = normalized(branch, residual, this.input_layernorm);
    const attended = this.self_attn.call(x, angles, cache);
    const [next, y] = normalized(attended, stream, this.post_attention_layernorm);
    return [this.mlp.call(y), next];
  }
}

function normalized(branch: Tensor, residual: Tensor | null, norm: RMSNorm): [Tensor, Tensor] {
  if (!residual) return [branch, norm.call(branch)];
  return addRmsNorm(branch, residual, norm.weight, norm.eps);
}

/** The embedding, blocks and the last norm, under the names of Hugging Face's LlamaModel. */
export class LlamaModel extends Module {
  /** The table of tokens. */
  readonly embed_tokens: Embedding;
  /** The blocks, first to last. */
  readonly layers: LlamaBlock[];
  /** The norm behind the last block. */
  readonly norm: RMSNorm;
  private readonly rotary: RotaryTable;

  constructor(private readonly sizes: LlamaSizes) {
    super();
    const { vocabSize, maxSeq, channels, layers, eps } = sizes;
    this.embed_tokens = new Embedding(vocabSize, channels);
    this.layers = Array.from({ length: layers }, () => new LlamaBlock(sizes));
    this.norm = new RMSNorm(channels, eps);
    this.rotary = new RotaryTable(sizes, maxSeq);
  }

  /** Hidden states [B, T, C] of tokens [B, T]. */
  override forward(tokens: Tensor, caches: readonly KeyValueCache[] | null = null): Tensor {
    const embedded = this.embed_tokens.call(tokens);
    const angles = this.rotary.at(caches?.[0]?.length ?? 0, tokens.size(1), embedded);
    const keepsInputsOnly = this.sizes.activationCheckpointing && !caches;
    return keepsInputsOnly
      ? this.checkpointed(embedded, angles)
      : this.fused(embedded, angles, caches);
  }

  /** Every addition to the stream is part of a normalisation; what was added is let go. */
  private fused(x: Tensor, angles: Angles, caches: readonly KeyValueCache[] | null): Tensor {
    let [branch, residual]: [Tensor, Tensor | null] = [x, null];
    this.layers.forEach((block, i) => {
      const used = [branch, residual];
      [branch, residual] = scope(() => block.call(branch, residual, angles, caches?.[i] ?? null));
      for (const tensor of used) tensor?.dispose();
    });
    return scope(() => normalized(branch, residual, this.norm)[1]);
  }

  /** One tensor per segment survives the forward. The same sums as fused(), bit for bit. */
  private checkpointed(x: Tensor, angles: Angles): Tensor {
    const layers = this.layers.map((block) => (input: Tensor) => {
      const [branch, residual] = block.call(input, null, angles);
      return branch.add(residual);
    });
    const stream = checkpointSequential(layers, this.sizes.numberCheckpoints ?? null, x);
    return this.norm.call(stream);
  }
}

/**
 * The language model; see CausalLM. Angles are f32 also where weights are not. Source: Touvron et
 * al. 2023, Grattafiori et al. 2024; initialisation as in transformers' LlamaPreTrainedModel.
 */
export class Llama extends CausalLM {
  /** The token table, the blocks and the last norm. */
  readonly model: LlamaModel;
  /** From channels to the logits of tokens. */
  readonly lm_head: Linear | TiedHead;
  /** What it was made with, complete. */
  readonly config: LlamaSizes;

  /** Throws DS_ARGUMENT for an unknown option and for sizes that are none. */
  constructor(given: LlamaConfig) {
    super();
    const config = readLlamaConfig(given);
    const { vocabSize, channels, initializerRange, tied } = config;
    this.config = config;
    this.model = new LlamaModel(config);
    const { embed_tokens } = this.model;
    this.lm_head = tied ? new TiedHead(embed_tokens) : new Linear(channels, vocabSize, BIASLESS);
    for (const module of this.modules()) {
      if (!(module instanceof Linear || module instanceof Embedding)) continue;
      module.weight.initialize(normal(initializerRange));
      if (module instanceof Linear) module.bias?.initialize(zeros);
    }
  }

  /** @internal How folders of Hugging Face's become Llamas. */
  static readonly family: Family<Llama, LlamaOptions> = {
    ...LLAMA_FOLDERS,
    build: (folder, options) => new Llama({ ...parseLlamaConfig(folder), ...options }),
  };

  /**
   * The Llama in a folder of Hugging Face's (config.json, safetensors in one file or several), in
   * f32 on the CPU. Rejects with DS_CHECKPOINT when it is damaged, another model or computes
   * something else, DS_IO when it cannot be read.
   */
  static fromPretrained(dir: string, options: LlamaOptions = {}): Promise<Llama> {
    return readPretrained(dir, [Llama.family], options);
  }

  override describe(): PretrainedDescription {
    return describeLlama(this.config);
  }

  protected override hiddenOf(tokens: Tensor, caches: readonly KeyValueCache[] | null): Tensor {
    return this.model.call(tokens, caches);
  }
}
