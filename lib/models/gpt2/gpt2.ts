// GPT-2 with the published sizes and the parameter names of Hugging Face's GPT2LMHeadModel.
import type { JsonObject } from '../../../types/json.js';
import { CausalSelfAttention, type LayerCache } from '../../nn/attention.js';
import { Embedding } from '../../nn/embedding.js';
import { normal, zeros } from '../../nn/initializers.js';
import { Linear, LinearGelu } from '../../nn/linear.js';
import { Module } from '../../nn/module.js';
import { LayerNorm } from '../../nn/norms.js';
import type { PackedLinear } from '../../nn/packed-linear.js';
import type { PretrainedDescription } from '../../nn/pretrained-description.js';
import type { TensorPlan } from '../../parallel/plan.js';
import type { PipelineLayer, Values } from '../../pipe/index.js';
import {
  addLayerNorm,
  checkpointSequential,
  dropout,
  gelu,
  layerNorm,
  recomputable,
  recomputed,
  scope,
  type Tensor,
} from '../../tensor/index.js';
import { isInSegment } from '../../tensor/kept-results.js';
import type { BlockActivations } from '../activation-shape.js';
import { flattenStream, streaming } from '../block-layers.js';
import { CausalLM } from '../causal-lm.js';
import { listRunning, requireOwnTokens, scaleBranch } from '../layer-factors.js';
import { type Family, type FolderOptions, readPretrained } from '../model-folder.js';
import { inRows, type Places } from '../places.js';
import { StreamSums } from '../stream-sums.js';
import { TiedHead } from '../tied-head.js';
import { type DrawnTokens, drawTokens, replaceChosen, selectChosen } from '../token-drop.js';
import { gpt2BlockActivations } from './activations.js';
import {
  findPublishedGpt2,
  type GPT2Config,
  type GPT2Options,
  readGpt2Config,
  resolveInitializerRange,
} from './config.js';
import { describeGpt2, GPT2_FOLDERS, parseGpt2Config } from './pretrained.js';

/**
 * Radford et al. 2019: initial projections onto the residual stream are scaled down by their
 * number.
 */
const residualStddev = (config: GPT2Config): number =>
  resolveInitializerRange(config) / Math.sqrt(2 * config.layers);

const weightInit = (stddev: number) => ({ weightInit: normal(stddev), biasInit: zeros });

const geluTanh = (x: Tensor): Tensor => gelu(x, 'tanh');

/** GPT-2's feed-forward branch: c_fc [4C, C], GELU, c_proj [C, 4C]. x [.., C] gives [.., C]. */
export class Mlp extends Module {
  /** Maps channels to 4 * channels, with GELU. */
  readonly c_fc: Linear;
  /** Back to channels. */
  readonly c_proj: Linear;
  /** The function after c_fc. */
  private readonly activation: (x: Tensor) => Tensor;

  /** Sizes and initial deviation come from the configuration of the model. */
  constructor(config: GPT2Config) {
    super();
    const { channels, activationCheckpointing, fusedGelu } = config;
    const selective = activationCheckpointing === 'selective';
    const fused = fusedGelu ?? !selective;
    if (fused) this.activation = (x) => x;
    else this.activation = selective ? (x) => recomputed(geluTanh, x) : geluTanh;
    const Expansion = fused ? LinearGelu : Linear;
    this.c_fc = new Expansion(channels, 4 * channels, weightInit(resolveInitializerRange(config)));
    this.c_proj = new Linear(4 * channels, channels, weightInit(residualStddev(config)));
  }

  /** Maps [..., channels] to the same shape. */
  override forward(x: Tensor): Tensor {
    return this.c_proj.call(this.activation(this.c_fc.call(x)));
  }
}

/**
 * A pre-norm block. It passes the residual stream and the last branch separately: the next
 * normalization adds them.
 */
export class GPT2Block extends Module {
  /** Norm before the attention. */
  readonly ln_1: LayerNorm;
  /** Causal self-attention. */
  readonly attn: CausalSelfAttention;
  /** Norm before the MLP. */
  readonly ln_2: LayerNorm;
  /** The two linear layers after the attention. */
  readonly mlp: Mlp;
  private readonly dropoutRate: number;
  private readonly normalize: typeof normalizeBranch;

  /** Sizes, dropout and precision come from the configuration of the model. */
  constructor(config: GPT2Config) {
    super();
    const { channels, heads } = config;
    this.ln_1 = new LayerNorm(channels);
    this.attn = new CausalSelfAttention(
      channels,
      heads,
      weightInit(resolveInitializerRange(config)),
      weightInit(residualStddev(config)),
    );
    this.ln_2 = new LayerNorm(channels);
    this.mlp = new Mlp(config);
    this.dropoutRate = config.dropout ?? 0;
    const selective = config.activationCheckpointing === 'selective';
    this.normalize = selective ? recomputeNormalized : normalizeBranch;
  }

  /**
   * Runs the block. The stream is branch + residual, or branch if residual is null; returns the
   * next pair. `factor` scales the block's contribution to the stream.
   */
  override forward(
    branch: Tensor,
    residual: Tensor | null,
    cache: LayerCache | null = null,
    documents: Tensor | null = null,
    factor = 1,
  ): [Tensor, Tensor] {
    const [stream, x] = this.normalize(branch, residual, this.ln_1);
    const { attn, ln_2 } = this;
    // If the checkpoint keeps projections, it keeps the sum of attention and stream instead.
    // Backward computes the norm again from this sum.
    const isSummed = isInSegment() && this.addsAttention(factor);
    const attended = scaleBranch(this.drop(attn.call(x, cache, documents, !isSummed)), factor);
    const [next, y] = isSummed
      ? attn.runProjections(x, () => this.normalize(attended, stream, ln_2))
      : this.normalize(attended, stream, ln_2);
    return [scaleBranch(this.drop(this.mlp.call(y)), factor), next];
  }

  /** Returns whether the attention is added to the stream as it is, and nothing else reads it. */
  private addsAttention(factor: number): boolean {
    const isDropped = this.training && this.dropoutRate > 0;
    return this.attn.isPlain && !isDropped && factor === 1 && this.normalize === normalizeBranch;
  }

  private drop(x: Tensor): Tensor {
    return this.training ? dropout(x, this.dropoutRate) : x;
  }
}

function normalizeBranch(
  branch: Tensor,
  residual: Tensor | null,
  norm: LayerNorm,
): [Tensor, Tensor] {
  if (!residual) return [branch, norm.call(branch)];
  return addLayerNorm(branch, residual, norm.weight, norm.bias, norm.eps);
}

/**
 * Returns the same results as normalized(), but recomputes the second from the first in the
 * backward instead of saving it.
 */
function recomputeNormalized(
  branch: Tensor,
  residual: Tensor | null,
  norm: LayerNorm,
): [Tensor, Tensor] {
  const [stream, x] = normalizeBranch(branch, residual, norm);
  const again = (s: Tensor): Tensor => layerNorm(s, norm.weight, norm.bias, norm.eps);
  return [stream, recomputable(x, again, stream)];
}

/** A block on the stream, or on the tokens `chosen` [B, R] of it, each in its document. */
function runOnChosen(
  [branch, residual]: [Tensor, Tensor | null],
  chosen: Tensor | null,
  documents: Tensor | null,
  through: (b: Tensor, r: Tensor | null, documents: Tensor | null) => [Tensor, Tensor],
): [Tensor, Tensor | null] {
  if (!chosen) return through(branch, residual, documents);
  const stream = residual ? branch.add(residual) : branch;
  const within = documents?.gather(1, chosen) ?? null;
  return [replaceChosen(stream, chosen, (part) => sumStream(through(part, null, within))), null];
}

const sumStream = ([branch, residual]: [Tensor, Tensor]): Tensor => branch.add(residual);

/** Embeddings, blocks and the last norm, under the names of Hugging Face's GPT2Model. */
export class Transformer extends Module {
  /** The table of tokens. */
  readonly wte: Embedding;
  /** The table of positions. */
  readonly wpe: Embedding;
  /** The blocks, first to last. */
  readonly h: GPT2Block[];
  /** The norm behind the last block. */
  readonly ln_f: LayerNorm;

  /** Creates `config.layers` blocks. Memory is allocated at first use. */
  constructor(private readonly config: GPT2Config) {
    super();
    const { vocabSize, maxSeq, channels, layers } = config;
    const stddev = resolveInitializerRange(config);
    this.wte = new Embedding(vocabSize, channels, normal(stddev));
    this.wpe = new Embedding(maxSeq, channels, normal(stddev));
    this.h = Array.from({ length: layers }, () => new GPT2Block(config));
    this.ln_f = new LayerNorm(channels);
  }

  /** Maps tokens [B, T] to hidden states [B, T, channels]. */
  override forward(tokens: Tensor, places: Places = inRows): Tensor {
    const embedded = scope(() => this.embed(tokens, places));
    requireOwnTokens(embedded, places.factors);
    const keepsInputsOnly = this.config.activationCheckpointing === true && !places.caches;
    const patternOf = (layer: number) => this.h[layer]?.attn.sparsity ?? null;
    const drawn = drawTokens(embedded, places.layerTokens, patternOf);
    const out = keepsInputsOnly
      ? this.runCheckpointed(embedded, places, drawn)
      : this.runFused(embedded, places, drawn);
    drawn?.chosen.dispose();
    return out;
  }

  /**
   * @internal Returns the transformer as pipeline layers, which pass on the stream and the last
   * branch, not yet added.
   */
  pipelineLayers(): PipelineLayer[] {
    const embedding = (tokens: Values): Tensor => scope(() => this.embed(tokens as Tensor, inRows));
    const keepsInputsOnly = this.config.activationCheckpointing === true;
    const through = (block: GPT2Block) => (branch: Tensor, residual: Tensor | null) =>
      block.call(branch, residual);
    return [
      { modules: [this.wte, this.wpe], macs: 0, forward: embedding },
      ...this.h.map((block) => ({
        modules: [block],
        forward: streaming(through(block), keepsInputsOnly),
      })),
      {
        modules: [this.ln_f],
        forward: (values) => scope(() => normalizeBranch(...flattenStream(values), this.ln_f)[1]),
      },
    ];
  }

  private embed(tokens: Tensor, { positions, start }: Places): Tensor {
    const rows = positions
      ? this.wpe.call(positions)
      : this.wpe.weight.narrow(0, start, tokens.size(1));
    const sum = this.wte.call(tokens).add(rows);
    return this.training ? dropout(sum, this.config.dropout ?? 0) : sum;
  }

  /**
   * Runs the blocks. Every addition to the stream is part of a normalization; the branch is freed
   * after it.
   */
  private runFused(
    x: Tensor,
    { caches, documents, factors }: Places,
    drawn: DrawnTokens | null,
  ): Tensor {
    let [branch, residual]: [Tensor, Tensor | null] = [x, null];
    for (const { layer, index, factor } of listRunning(this.h, factors)) {
      const used = [branch, residual];
      const cache = caches?.[index] ?? null;
      const through = (b: Tensor, r: Tensor | null, within: Tensor | null) =>
        layer.call(b, r, cache, within, factor);
      [branch, residual] = scope(() =>
        runOnChosen([branch, residual], selectChosen(drawn, index), documents, through),
      );
      for (const tensor of used) tensor?.dispose();
    }
    return scope(() => normalizeBranch(branch, residual, this.ln_f)[1]);
  }

  /**
   * Runs the blocks in segments and keeps one tensor per segment. The sums are those of runFused(),
   * bit for bit.
   */
  private runCheckpointed(
    x: Tensor,
    { documents, factors }: Places,
    drawn: DrawnTokens | null,
  ): Tensor {
    const sums = new StreamSums();
    const running = listRunning(this.h, factors);
    const layers = running.map(
      ({ layer, index, factor }, i) =>
        (input: Tensor, within: Tensor | null, chosen: Tensor | null) => {
          const through = (b: Tensor, r: Tensor | null, some: Tensor | null) =>
            layer.call(b, r, null, some, factor);
          const seen = selectChosen(drawn, index, chosen);
          const [branch, residual] = sums.enter(input, (b, r) =>
            runOnChosen([b, r], seen, within, through),
          );
          const mayWait = !drawn && i + 1 < running.length;
          return residual ? sums.add(branch, residual, mayWait) : branch;
        },
    );
    const segments = this.config.numberCheckpoints ?? null;
    try {
      const stream = checkpointSequential(layers, segments, x, documents, drawn?.chosen ?? null);
      return this.ln_f.call(stream);
    } finally {
      sums.drop();
    }
  }
}

/**
 * GPT-2, a language model; its head is the token embedding. See CausalLM. Source: Radford et al.
 * 2019; initialization as in transformers' GPT2Model.
 */
export class GPT2 extends CausalLM {
  /** Embeddings, blocks and the last norm. */
  readonly transformer: Transformer;
  /** Maps channels to logits; its weight is the token table's. */
  readonly lm_head: TiedHead | PackedLinear;

  /** The sizes it was made with. */
  readonly config: GPT2Config;

  /** Throws DS_ARGUMENT for an unknown option and for invalid sizes. */
  constructor(options: GPT2Config) {
    super();
    const config = readGpt2Config(options);
    this.config = config;
    this.transformer = new Transformer(config);
    this.lm_head = new TiedHead(this.transformer.wte);
  }

  /** The sizes of "tiny", "124M", "355M", "774M", "1558M" or "10B" (with or without "gpt2-"). */
  static config(name: string): GPT2Config {
    return findPublishedGpt2(name);
  }

  /**
   * Loads a GPT-2 folder, as models.fromPretrained() does. `options` are this library's: dropout is
   * 0 by default for any folder, and a save writes the folder's original value. Rejects with
   * DS_CHECKPOINT if the folder is damaged or has another model, DS_IO if it cannot be read.
   */
  static fromPretrained(dir: string, options: GPT2Options & FolderOptions = {}): Promise<GPT2> {
    return readPretrained(dir, [GPT2.family], options);
  }

  /** @internal The family of such folders. */
  static readonly family: Family<GPT2, GPT2Options> = {
    ...GPT2_FOLDERS,
    build: (folder, options) => new GPT2({ ...parseGpt2Config(folder), ...options }),
  };

  override tensorPlan(): TensorPlan {
    const { heads } = this.config;
    const block = 'transformer.h.*';
    return {
      heads: { queries: heads, keys: heads },
      layers: {
        'transformer.wte': 'vocabulary',
        [`${block}.attn`]: 'attention',
        [`${block}.attn.c_attn`]: { style: 'column', heads: 'queries', parts: 3 },
        [`${block}.attn.c_proj`]: { style: 'row', heads: 'queries' },
        [`${block}.mlp.c_fc`]: 'column',
        [`${block}.mlp.c_proj`]: 'row',
        lm_head: 'head',
      },
      sequence: {
        body: 'transformer',
        first: 'transformer.h.0',
        byToken: [`${block}.ln_1`, `${block}.ln_2`, 'transformer.ln_f'],
      },
      taken: ({ keys }) => this.takeKeyHeads(keys),
    };
  }

  protected override described(sourceConfig: JsonObject | null): PretrainedDescription {
    return describeGpt2(this, this.config, sourceConfig);
  }

  /** @internal By the formulas of gpt2ActivationBytes(). */
  override blockActivations(): BlockActivations {
    return gpt2BlockActivations(this.config);
  }

  protected override bodyLayers(): PipelineLayer[] {
    return this.transformer.pipelineLayers();
  }

  protected override hiddenOf(tokens: Tensor, places: Places): Tensor {
    return this.transformer.call(tokens, places);
  }
}
