// The body that Llama, Mistral and Qwen share: rotary positions, grouped heads, RMS norms, gated
// feed-forward blocks, under the names of Hugging Face's LlamaModel.
import { DsError } from '../../errors.js';
import type { LayerCache } from '../../nn/attention.js';
import { Embedding } from '../../nn/embedding.js';
import { type RouterLoads, SparseMixture } from '../../nn/experts.js';
import { normal } from '../../nn/initializers.js';
import type { SwiGLU } from '../../nn/linear.js';
import { Module } from '../../nn/module.js';
import { RMSNorm } from '../../nn/norms.js';
import type { PipelineLayer } from '../../pipe/index.js';
import {
  addRmsNorm,
  checkpoint,
  checkpointSequential,
  dropout,
  scope,
  segmentsOf,
  sharedTokens,
  type Tensor,
} from '../../tensor/index.js';
import { streaming, streamOf } from '../block-layers.js';
import { requireOwnTokens, running, scaled } from '../layer-factors.js';
import { inRows, type Places } from '../places.js';
import { aroundChosen, chosenFor, type DrawnTokens, drawTokens, refused } from '../token-drop.js';
import { type AttentionContext, PackedAttention, RotaryAttention } from './attention.js';
import type { Body, Window } from './config.js';
import { feedForward } from './mixture.js';
import type { PackedSwiGLU } from './packed-swiglu.js';
import { type RopeScaling, regimeOf } from './rope-scaling.js';
import { RotaryTable } from './rotary-table.js';

/**
 * A pre-norm block. It passes the residual stream and the last branch separately: the next
 * normalization adds them.
 */
export class RotaryBlock extends Module {
  /** Before the attention. */
  readonly input_layernorm: RMSNorm;
  /** Causal attention with rotary positions. */
  readonly self_attn: RotaryAttention | PackedAttention;
  /** Before the MLP. */
  readonly post_attention_layernorm: RMSNorm;
  /** The gated feed-forward block, or a mixture of experts. */
  readonly mlp: SwiGLU | PackedSwiGLU | SparseMixture;
  private readonly dropoutRate: number;

  /** @internal Models make their blocks. */
  constructor(body: Body, window: Window, layer: number) {
    super();
    const { channels, eps } = body;
    const Attention = body.packed ? PackedAttention : RotaryAttention;
    this.input_layernorm = new RMSNorm(channels, eps);
    this.self_attn = new Attention(body, window);
    this.post_attention_layernorm = new RMSNorm(channels, eps);
    this.mlp = feedForward(body, layer);
    this.dropoutRate = body.residualDropout;
  }

  /**
   * The stream is branch + residual, or branch if residual is null; returns the next pair. `factor`
   * scales the block's contribution to the stream.
   */
  override forward(
    branch: Tensor,
    residual: Tensor | null,
    context: AttentionContext,
    cache: LayerCache | null = null,
    factor = 1,
  ): [Tensor, Tensor] {
    const [stream, x] = normalized(branch, residual, this.input_layernorm);
    const attended = scaled(this.drop(this.self_attn.call(x, context, cache)), factor);
    const [next, y] = normalized(attended, stream, this.post_attention_layernorm);
    const { mlp } = this;
    const fed = mlp instanceof SparseMixture ? mlp.call(y, context.loads) : mlp.call(y);
    return [scaled(this.drop(fed), factor), next];
  }

  private drop(x: Tensor): Tensor {
    return this.training ? dropout(x, this.dropoutRate) : x;
  }
}

function normalized(branch: Tensor, residual: Tensor | null, norm: RMSNorm): [Tensor, Tensor] {
  if (!residual) return [branch, norm.call(branch)];
  return addRmsNorm(branch, residual, norm.weight, norm.eps);
}

/** A block on the stream, or on the tokens `chosen` [B, R] of it, each at its own position. */
function onChosen(
  [branch, residual]: [Tensor, Tensor | null],
  chosen: Tensor | null,
  context: AttentionContext,
  through: (b: Tensor, r: Tensor | null, context: AttentionContext) => [Tensor, Tensor],
): [Tensor, Tensor | null] {
  if (!chosen) return through(branch, residual, context);
  const stream = residual ? branch.add(residual) : branch;
  const some = (all: Tensor | null): Tensor | null => all?.gather(1, chosen) ?? null;
  const positions = some(context.positions) ?? chosen;
  const at = { ...context, positions, documents: some(context.documents) };
  const whole = aroundChosen(stream, chosen, (part) => {
    const [b, r] = through(part, null, at);
    return b.add(r);
  });
  return [whole, null];
}

/** The embedding, blocks and the last norm. */
export class RotaryModel extends Module {
  /** The table of tokens. */
  readonly embed_tokens: Embedding;
  /** The blocks, first to last. */
  readonly layers: RotaryBlock[];
  /** The norm behind the last block. */
  readonly norm: RMSNorm;
  private readonly rotary: RotaryTable;

  constructor(private readonly body: Body) {
    super();
    const { vocabSize, maxSeq, channels, eps, windows, ropeScaling, padTokenId } = body;
    const init = normal(body.initializerRange);
    this.embed_tokens = new Embedding(vocabSize, channels, {
      init,
      ...(padTokenId !== null && { paddingIdx: padTokenId }),
    });
    this.layers = windows.map((window, layer) => new RotaryBlock(body, window, layer));
    this.norm = new RMSNorm(channels, eps);
    this.rotary = new RotaryTable(body, ropeScaling, maxSeq);
  }

  /** @internal Frees the tables of angles. */
  releaseTables(): void {
    this.rotary.release();
  }

  /** Returns hidden states [B, T, C] of tokens [B, T]. Throws DS_ARGUMENT. */
  override forward(tokens: Tensor, places: Places = inRows): Tensor {
    const embedded = this.embed_tokens.call(tokens);
    requireOwnTokens(embedded, places.factors);
    const keepsInputsOnly = this.body.activationCheckpointing && !places.caches;
    const drawn = this.drawn(embedded, places);
    const out = keepsInputsOnly
      ? this.checkpointed(embedded, places, drawn)
      : this.fused(embedded, places, drawn);
    drawn?.chosen.dispose();
    return out;
  }

  private drawn(x: Tensor, { layerTokens, loads }: Places): DrawnTokens | null {
    const patternOf = (layer: number) => this.layers[layer]?.self_attn.sparsity ?? null;
    const drawn = drawTokens(x, layerTokens, patternOf);
    if (!drawn) return null;
    if (loads) throw refused('routers with a balancing loss', 'Set routerAuxLossCoef to 0');
    const looksBack = this.body.windows.some((window, i) => window !== null && drawn.draws.has(i));
    if (looksBack) throw refused('blocks with a window', 'List blocks without a window');
    return drawn;
  }

  private contextOf(x: Tensor, places: Places): AttentionContext {
    const { documents, positions, reach, alike = null, start, loads = null } = places;
    const share = sharedTokens();
    const all = share?.whole ?? x.size(1);
    // With a head exchange this rank rotates only its own tokens; otherwise it has all tokens.
    const T = share?.heads ? share.count : all;
    if (!positions) {
      const length = share ? all : start + T;
      const { cos, sin } = this.rotary.at(start, T, { length, like: x });
      return { cos, sin, positions, documents, loads };
    }
    // With a length-dependent scaling the angles follow from the sequence's length, which is
    // unknown here.
    if (alike === null) requireOneRegime(this.body.ropeScaling, reach ?? all);
    const { cos, sin } =
      reach !== null
        ? this.rotary.whole(alike ?? 1, x)
        : this.rotary.at(0, all, { length: all, like: x });
    return { cos, sin, positions, documents, loads };
  }

  /**
   * @internal The same as pipeline layers, see GPT-2's. Every layer has its own table of angles.
   */
  pipelineLayers(): PipelineLayer[] {
    const keepsInputsOnly = this.body.activationCheckpointing === true;
    const through = (block: RotaryBlock) => (branch: Tensor, residual: Tensor | null) =>
      block.call(branch, residual, this.contextOf(branch, inRows));
    return [
      {
        modules: [this.embed_tokens],
        macs: 0,
        forward: (tokens) => this.embed_tokens.call(tokens as Tensor),
      },
      ...this.layers.map((block) => ({
        modules: [block],
        forward: streaming(through(block), keepsInputsOnly),
      })),
      {
        modules: [this.norm],
        forward: (values) => scope(() => normalized(...streamOf(values), this.norm)[1]),
      },
    ];
  }

  /** Every addition to the stream is part of a normalization; the branch is freed after it. */
  private fused(x: Tensor, places: Places, drawn: DrawnTokens | null): Tensor {
    const context = this.contextOf(x, places);
    let [branch, residual]: [Tensor, Tensor | null] = [x, null];
    for (const { layer, index, factor } of running(this.layers, places.factors)) {
      const used = [branch, residual];
      const cache = places.caches?.[index] ?? null;
      const through = (b: Tensor, r: Tensor | null, at: AttentionContext) =>
        layer.call(b, r, at, cache, factor);
      [branch, residual] = scope(() =>
        onChosen([branch, residual], chosenFor(drawn, index), context, through),
      );
      for (const tensor of used) tensor?.dispose();
    }
    return scope(() => normalized(branch, residual, this.norm)[1]);
  }

  /** Keeps one tensor per segment after the forward. The same sums as fused(), bit for bit. */
  private checkpointed(x: Tensor, places: Places, drawn: DrawnTokens | null): Tensor {
    if (places.loads) return this.norm.call(this.checkpointedBeside(x, places, places.loads));
    const layers = running(this.layers, places.factors).map(({ layer, index, factor }) => {
      return (input: Tensor, ...given: readonly (Tensor | null)[]): Tensor => {
        const [documents = null, positions = null, chosen = null] = given;
        const context = this.contextOf(input, { ...places, documents, positions });
        const through = (b: Tensor, r: Tensor | null, at: AttentionContext) =>
          layer.call(b, r, at, null, factor);
        const seen = chosenFor(drawn, index, chosen);
        const [branch, residual] = onChosen([input, null], seen, context, through);
        return residual ? branch.add(residual) : branch;
      };
    });
    const segments = this.body.numberCheckpoints ?? null;
    const { documents, positions } = places;
    const given = [documents, positions, drawn?.chosen ?? null];
    const stream = checkpointSequential(layers, segments, x, ...given);
    return this.norm.call(stream);
  }

  /** The stream after the blocks. Each checkpointed segment also returns its routing statistics. */
  private checkpointedBeside(x: Tensor, places: Places, { mask, layers }: RouterLoads): Tensor {
    const { documents, positions } = places;
    let stream = x;
    const blocks = running(this.layers, places.factors);
    for (const part of segmentsOf(blocks, this.body.numberCheckpoints ?? null)) {
      const through = (input: Tensor, ...given: readonly (Tensor | null)[]): Tensor[] => {
        const [documents = null, positions = null, mask = null] = given;
        const loads: RouterLoads = { mask, layers: [] };
        const out = part.reduce((from, { layer, factor }) => {
          const context = this.contextOf(from, { ...places, documents, positions, loads });
          const [branch, residual] = layer.call(from, null, context, null, factor);
          return branch.add(residual);
        }, input);
        return [out, ...loads.layers];
      };
      const [next, ...loads] = checkpoint(through, stream, documents, positions, mask);
      for (const load of loads) layers.push(load.keep());
      if (stream !== x) stream.dispose();
      stream = next as Tensor;
    }
    return stream;
  }
}

/** Throws DS_ARGUMENT if texts of up to `longest` tokens have different angles. */
function requireOneRegime(scaling: RopeScaling | null, longest: number): void {
  if (regimeOf(scaling, longest) === regimeOf(scaling, 1)) return;
  const { type } = scaling as RopeScaling;
  throw new DsError({
    code: 'DS_ARGUMENT',
    op: 'inputs of a model with rope scaling',
    expected: `documents and positions below the length at which "${type}" depends on the text`,
    got: `up to ${longest} tokens`,
    hint: 'Use rows of at most original_max_position_embeddings tokens for documents, or one text per row.',
  });
}
