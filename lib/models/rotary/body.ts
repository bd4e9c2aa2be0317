// The body of all families with rotary positions, under the names of transformers' models. The
// declaration of a family (traits.ts) sets norms, feed-forward blocks, scales and angles.

import type { LayerCache } from '../../nn/attention.js';
import { Embedding } from '../../nn/embedding.js';
import { SparseMixture } from '../../nn/experts.js';
import { normal } from '../../nn/initializers.js';
import { Module } from '../../nn/module.js';
import type { RouterLoads } from '../../nn/routers.js';
import type { PipelineLayer } from '../../pipe/index.js';
import type { DType } from '../../runtime/dtype.js';
import { required } from '../../runtime/required.js';
import {
  checkpoint,
  checkpointSequential,
  dropout,
  scope,
  segmentsOf,
  sharedTokens,
  Tensor,
} from '../../tensor/index.js';
import { streaming, streamOf } from '../block-layers.js';
import { requireOwnTokens, running, scaled } from '../layer-factors.js';
import { inRows, type Places } from '../places.js';
import { aroundChosen, chosenFor, type DrawnTokens, drawTokens, refused } from '../token-drop.js';
import {
  type AttentionContext,
  GatedAttention,
  PackedAttention,
  PerHeadAttention,
  RotaryAttention,
} from './attention.js';
import { addExperts, besideExperts } from './beside-experts.js';
import { droppedSource, overflow, requireOneRegime } from './body-errors.js';
import type { Body } from './config.js';
import { GatedDeltaNet } from './delta-net.js';
import { type FeedForward, feedForward } from './feed-forward.js';
import { type BlockAttention, LatentAttention } from './latent-attention.js';
import { addEnding, addLayerInputs, ended, INPUT_MODULES, layerInputsOf } from './layer-inputs.js';
import { bodyAt } from './layer-kinds.js';
import { LayeredAttention } from './layered-attention.js';
import { setNamed } from './named-module.js';
import { type AnyNorm, type Norm, normalized, normOf } from './norms.js';
import { type Angles, RotaryTable } from './rotary-table.js';
import {
  checkpointedKinds,
  type KindBlock,
  keepShared,
  kindLayers,
  releaseShared,
  type Shared,
} from './shared-keys.js';
import type { PositionTable, RotaryTraits } from './traits.js';

/**
 * A block: attention and a feed-forward block, with norms where the family has them. It passes the
 * residual stream and the last branch separately: the next normalization adds them.
 */
export class RotaryBlock extends Module {
  // The constructor assigns the fields: their order is the order of parameters. The family names
  // the norms.
  /** Before the attention, in families with this norm. */
  declare readonly input_layernorm: Norm;
  /** Causal attention with rotary positions; in some layers of hybrid models a recurrence. */
  declare readonly self_attn: BlockAttention | GatedDeltaNet;
  /** Before the MLP; in families with norms after the branches, after the attention. */
  declare readonly post_attention_layernorm: Norm;
  /** The feed-forward block, or a mixture of experts. */
  declare readonly mlp: FeedForward;

  /** @internal Models make their blocks. */
  constructor(
    /** @internal */
    private readonly body: Body,
    private readonly layer: number,
  ) {
    super();
    const { traits, norms, windows } = body;
    const own = bodyAt(body, layer);
    const { names = {} } = traits;
    const window = windows[layer] ?? null;
    this.addNorm(norms.attention[0]);
    if (body.delta?.layers[layer]) {
      setNamed(this, 'self_attn', 'linear_attn', new GatedDeltaNet(body));
    } else {
      const attention = new (attentionOf(traits))(own, { window, layer });
      setNamed(this, 'self_attn', names.attention ?? 'self_attn', attention);
    }
    this.addNorm(norms.attention[1]);
    this.addNorm(norms.mlp[0]);
    this.mlp = feedForward(own, layer);
    this.addNorm(norms.mlp[1]);
    if (traits.moe?.beside) addExperts(this, body);
    if (traits.layerKinds) addEnding(this, body);
  }

  private addNorm(name: string | null): void {
    if (name !== null) Object.assign(this, { [name]: normOf(this.body, this.body.channels) });
  }

  private norm(name: string): AnyNorm {
    return required((this as unknown as Record<string, AnyNorm>)[name]);
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
  ): [Tensor, Tensor | null] {
    const { norms, isParallel, factors } = this.body;
    const scale = factor * factors.residual;
    const [stream, x] = this.entered(branch, residual, norms.attention[0]);
    const attended = this.left(this.self_attn.call(x, context, cache), norms.attention[1], scale);
    if (isParallel) {
      const [before] = norms.mlp;
      const y = before === null ? x : this.norm(before).call(stream);
      const fed = this.left(this.fed(y, context), norms.mlp[1], scale);
      return [attended.add(fed), stream];
    }
    const [next, y] = this.entered(attended, stream, norms.mlp[0]);
    const dense = this.fed(y, context);
    const { moe, traits } = this.body;
    const both = moe && traits.moe?.beside ? besideExperts(this, { dense, stream: next }) : dense;
    const fed = this.left(both, norms.mlp[1], scale);
    if (!traits.layerKinds) return [fed, next];
    const given = { stream: fed.add(next), inputs: context.layerInputs ?? null };
    return [ended(this, this.body, this.layer, given), null];
  }

  /** The stream, and the input of a branch. */
  private entered(
    branch: Tensor,
    residual: Tensor | null,
    name: string | null,
  ): [stream: Tensor, x: Tensor] {
    if (name !== null) return normalized(branch, residual, this.norm(name));
    const stream = residual ? branch.add(residual) : branch;
    return [stream, stream];
  }

  private fed(x: Tensor, context: AttentionContext): Tensor {
    const { mlp } = this;
    return mlp instanceof SparseMixture ? mlp.call(x, context.loads) : mlp.call(x);
  }

  /** The contribution of a branch to the stream. */
  private left(branch: Tensor, name: string | null, scale: number): Tensor {
    const dropped = this.training ? dropout(branch, this.body.residualDropout) : branch;
    return scaled(name === null ? dropped : this.norm(name).call(dropped), scale);
  }
}

function attentionOf({ packed, perHead, latent, gated, layerKinds }: RotaryTraits) {
  if (layerKinds) return LayeredAttention;
  if (latent) return LatentAttention;
  if (gated) return GatedAttention;
  if (perHead) return PerHeadAttention;
  return packed ? PackedAttention : RotaryAttention;
}

/** The stream of a branch and a residual. */
const sumOf = (branch: Tensor, residual: Tensor | null): Tensor =>
  residual ? branch.add(residual) : branch;

/** A block on the stream, or on the tokens `chosen` [B, R] of it, each at its own position. */
function onChosen(
  [branch, residual]: [Tensor, Tensor | null],
  chosen: Tensor | null,
  context: AttentionContext,
  through: (b: Tensor, r: Tensor | null, context: AttentionContext) => [Tensor, Tensor | null],
): [Tensor, Tensor | null] {
  if (!chosen) return through(branch, residual, context);
  const stream = sumOf(branch, residual);
  const some = (all: Tensor | null): Tensor | null => all?.gather(1, chosen) ?? null;
  const positions = some(context.positions) ?? chosen;
  const at = { ...context, positions, documents: some(context.documents) };
  const whole = aroundChosen(stream, chosen, (part) => {
    return sumOf(...through(part, null, at));
  });
  return [whole, null];
}

/** The places of tokens, and values that the blocks of one forward share. */
interface Given extends Places {
  layerInputs?: Tensor | null;
  shared?: Shared;
}

/** The name of the norm behind the last block. */
export const lastNorm = ({ traits }: Pick<Body, 'traits'>): string => traits.norm?.last ?? 'norm';

/** `value` rounded to a dtype. */
function roundedTo(value: number, dtype: DType): number {
  if (dtype === 'f64') return value;
  return scope(() => Tensor.from([value], { dtype: 'f32' }).to(dtype).to('f32').item());
}

/** The embedding, blocks and the last norm. */
export class RotaryModel extends Module {
  /** The table of tokens. */
  declare readonly embed_tokens: Embedding;
  /** The blocks, first to last. */
  declare readonly layers: RotaryBlock[];
  /** The norm behind the last block; some families have another name. */
  declare readonly norm: Norm;
  private readonly rotary: RotaryTable;
  private readonly windowRotary: RotaryTable | null;
  /** Factors of embeddings as each dtype has them. */
  private readonly rootFactors = new Map<string, number>();

  constructor(private readonly body: Body) {
    super();
    const { vocabSize, maxSeq, channels, windows, ropeScaling, padTokenId, windowTheta } = body;
    const { names = {}, positions } = body.traits;
    const init = normal(body.initializerRange);
    const table = new Embedding(vocabSize, channels, {
      init,
      ...(padTokenId !== null && { paddingIdx: padTokenId }),
    });
    setNamed(this, 'embed_tokens', names.embed ?? 'embed_tokens', table);
    if (typeof positions === 'object') {
      const places = new Embedding(maxSeq + positions.offset, channels, { init });
      Object.assign(this, { [positions.table]: places });
    }
    if (names.embedNorm) Object.assign(this, { [names.embedNorm]: normOf(body, channels) });
    const blocks = windows.map((_, layer) => new RotaryBlock(body, layer));
    setNamed(this, 'layers', names.layers ?? 'layers', blocks);
    Object.assign(this, { [lastNorm(body)]: normOf(body, channels) });
    addLayerInputs(this, body, init);
    const { rotaryDim, ropeTheta, full } = body;
    const widest = { ropeTheta, rotaryDim: full?.headDim ?? rotaryDim };
    this.rotary = new RotaryTable(widest, ropeScaling, maxSeq);
    this.windowRotary =
      windowTheta === null
        ? null
        : new RotaryTable({ rotaryDim, ropeTheta: windowTheta }, null, maxSeq);
  }

  private child(name: string): AnyNorm {
    return required((this as unknown as Record<string, AnyNorm>)[name]);
  }

  private get last(): AnyNorm {
    return this.child(lastNorm(this.body));
  }

  /** @internal Frees the tables of angles. */
  releaseTables(): void {
    this.rotary.release();
    this.windowRotary?.release();
    this.body.slopes?.release();
  }

  /** The scaled embedding of tokens. */
  private embedded(tokens: Tensor, places: Places): Tensor {
    const { positions, names } = this.body.traits;
    const x = this.scaledTokens(tokens);
    if (!positions && !names?.embedNorm) return x;
    return scope(() => {
      const placed = typeof positions === 'object' ? x.add(this.rowsOf(positions, x, places)) : x;
      return names?.embedNorm ? this.child(names.embedNorm).call(placed) : placed;
    });
  }

  /** The rows [B or 1, T, C] of a table of positions. */
  private rowsOf({ table, offset }: PositionTable, x: Tensor, places: Places): Tensor {
    const rows = (this as unknown as Record<string, Embedding>)[table] as Embedding;
    const { positions, start } = places;
    if (positions) return rows.call(positions.add(offset));
    return rows.weight.narrow(0, offset + start, x.size(1));
  }

  private scaledTokens(tokens: Tensor): Tensor {
    const x = this.embed_tokens.call(tokens);
    const { traits, factors } = this.body;
    if (traits.overflowsF16 && x.dtype === 'f16') throw overflow(traits.name);
    const { embed } = factors;
    if (embed === 1) return x;
    if (traits.scales?.embed !== 'rootChannels') return x.mul(embed);
    return x.mul(this.rounded(embed, x.dtype));
  }

  private rounded(factor: number, dtype: DType): number {
    const name = `${dtype} ${factor}`;
    const known = this.rootFactors.get(name) ?? roundedTo(factor, dtype);
    this.rootFactors.set(name, known);
    return known;
  }

  /** The further embeddings of all blocks, for the embedding `x`; null: none. */
  private layerInputs(tokens: Tensor, x: Tensor): Tensor | null {
    const rounded = (factor: number): number => this.rounded(factor, x.dtype);
    return layerInputsOf(this, this.body, { tokens, x }, rounded);
  }

  /** Hidden states, scaled as the logits. */
  private finished(branch: Tensor, residual: Tensor | null): Tensor {
    const [, hidden] = normalized(branch, residual, this.last);
    return scaled(hidden, this.body.factors.logits);
  }

  /** Returns hidden states [B, T, C] of tokens [B, T]. Throws DS_ARGUMENT. */
  override forward(tokens: Tensor, places: Places = inRows): Tensor {
    const embedded = this.embedded(tokens, places);
    requireOwnTokens(embedded, places.factors);
    if (places.factors && this.body.sharedKeys) throw droppedSource(this.body.traits.name);
    const keepsInputsOnly = this.body.activationCheckpointing && !places.caches;
    const drawn = this.drawn(embedded, places);
    const layerInputs = this.layerInputs(tokens, embedded);
    const all = { ...places, layerInputs };
    const out = keepsInputsOnly
      ? this.checkpointed(embedded, all, drawn)
      : this.fused(embedded, all, drawn);
    for (const tensor of [drawn?.chosen, layerInputs]) tensor?.dispose();
    return out;
  }

  private drawn(x: Tensor, { layerTokens, loads }: Places): DrawnTokens | null {
    const patternOf = (layer: number) => this.layers[layer]?.self_attn.sparsity ?? null;
    const drawn = drawTokens(x, layerTokens, patternOf);
    if (!drawn) return null;
    if (this.body.traits.layerKinds) throw refused('layers that differ', 'Omit random_ltd');
    if (loads) throw refused('routers with a balancing loss', 'Set routerAuxLossCoef to 0');
    const looksBack = this.body.windows.some((window, i) => window !== null && drawn.draws.has(i));
    if (looksBack) throw refused('blocks with a window', 'List blocks without a window');
    return drawn;
  }

  private contextOf(x: Tensor, places: Given): AttentionContext {
    const { documents, positions, reach, alike = null, start, loads = null } = places;
    const { layerInputs = null, shared = new Map() } = places;
    const passed = { loads, layerInputs, shared };
    const share = sharedTokens();
    const all = share?.whole ?? x.size(1);
    // With a head exchange this rank rotates only its own tokens; otherwise it has all tokens.
    const T = share?.heads ? share.count : all;
    if (!positions) {
      const at = (table: RotaryTable): Angles =>
        table.at(start, T, { length: share ? all : start + T, like: x });
      return { ...this.anglesBy(at), positions, documents, ...passed };
    }
    // With a length-dependent scaling the angles follow from the sequence's length, which is
    // unknown here.
    if (alike === null) requireOneRegime(this.body.ropeScaling, reach ?? all);
    const at = (table: RotaryTable): Angles =>
      reach !== null ? table.whole(alike ?? 1, x) : table.at(0, all, { length: all, like: x });
    return { ...this.anglesBy(at), positions, documents, ...passed };
  }

  private anglesBy(at: (table: RotaryTable) => Angles): Angles & { ofWindows: Angles | null } {
    const { rotary, windowRotary } = this;
    return { ...at(rotary), ofWindows: windowRotary && at(windowRotary) };
  }

  /** The modules of embedded(). */
  private firstModules(): Module[] {
    const { positions, names } = this.body.traits;
    const others = [typeof positions === 'object' ? positions.table : null, names?.embedNorm];
    const fields = this as unknown as Record<string, Module>;
    const inputs = this.body.layerInputDim ? INPUT_MODULES : [];
    return [
      this.embed_tokens,
      ...[...others, ...inputs].flatMap((name) => (name ? [required(fields[name])] : [])),
    ];
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
        modules: this.firstModules(),
        macs: 0,
        forward: (tokens) => scope(() => this.entering(tokens as Tensor)),
      },
      ...(this.body.traits.layerKinds
        ? kindLayers(
            this.body,
            this.layers.map((block) => [[block], this.kindBlock(block, inRows)] as const),
            keepsInputsOnly,
          )
        : this.layers.map((block) => ({
            modules: [block],
            forward: streaming(through(block), keepsInputsOnly),
          }))),
      {
        modules: [this.last],
        forward: (values) => scope(() => this.finished(...streamOf(values))),
      },
    ];
  }

  /** The values of the first block: the stream, and the further embeddings if there are any. */
  private entering(tokens: Tensor): Tensor | Tensor[] {
    const x = this.embedded(tokens, inRows);
    const layerInputs = this.layerInputs(tokens, x);
    return layerInputs ? [x, layerInputs] : x;
  }

  /** Every addition to the stream is part of a normalization; the branch is freed after it. */
  private fused(x: Tensor, places: Given, drawn: DrawnTokens | null): Tensor {
    const context = this.contextOf(x, places);
    let [branch, residual]: [Tensor, Tensor | null] = [x, null];
    for (const { layer, index, factor } of running(this.layers, places.factors)) {
      const used = [branch, residual];
      if (places.taps?.layers.includes(index)) {
        const stream = residual ? branch.add(residual) : branch;
        places.taps.take(stream);
        if (stream !== branch) stream.dispose();
      }
      const cache = places.caches?.[index] ?? null;
      const through = (b: Tensor, r: Tensor | null, at: AttentionContext) =>
        layer.call(b, r, at, cache, factor);
      [branch, residual] = scope(() => {
        const out = onChosen([branch, residual], chosenFor(drawn, index), context, through);
        keepShared(context.shared, index);
        return out;
      });
      // The first stream of a parallel block is the embedding itself.
      for (const tensor of used) {
        if (tensor !== branch && tensor !== residual) tensor?.dispose();
      }
    }
    releaseShared(context.shared);
    return scope(() => this.finished(branch, residual));
  }

  /** Keeps one tensor per segment after the forward. The same sums as fused(), bit for bit. */
  private checkpointed(x: Tensor, places: Given, drawn: DrawnTokens | null): Tensor {
    if (this.body.traits.layerKinds) return this.finished(this.checkpointedKinds(x, places), null);
    if (places.loads) return this.finished(this.checkpointedBeside(x, places, places.loads), null);
    const layers = running(this.layers, places.factors).map(({ layer, index, factor }) => {
      return (input: Tensor, ...given: readonly (Tensor | null)[]): Tensor => {
        const [documents = null, positions = null, chosen = null] = given;
        const context = this.contextOf(input, { ...places, documents, positions });
        const through = (b: Tensor, r: Tensor | null, at: AttentionContext) =>
          layer.call(b, r, at, null, factor);
        const seen = chosenFor(drawn, index, chosen);
        const [branch, residual] = onChosen([input, null], seen, context, through);
        return sumOf(branch, residual);
      };
    });
    const segments = this.body.numberCheckpoints ?? null;
    const { documents, positions } = places;
    const given = [documents, positions, drawn?.chosen ?? null];
    const stream = checkpointSequential(layers, segments, x, ...given);
    return this.finished(stream, null);
  }

  /** A block for a stream alone. */
  private kindBlock(block: RotaryBlock, places: Places, factor = 1): KindBlock {
    return (x, given) => {
      const context = this.contextOf(x, { ...places, ...given });
      return sumOf(...block.call(x, null, context, null, factor));
    };
  }

  private checkpointedKinds(x: Tensor, places: Given): Tensor {
    const { documents, positions, layerInputs = null } = places;
    const blocks = running(this.layers, places.factors).map(({ layer, factor }) =>
      this.kindBlock(layer, places, factor),
    );
    return checkpointedKinds(this.body, blocks, x, { documents, positions, layerInputs });
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
          return sumOf(...layer.call(from, null, context, null, factor));
        }, input);
        return [out, ...loads.layers];
      };
      const [next, ...loads] = checkpoint(through, stream, documents, positions, mask);
      for (const load of loads) layers.push(load.keep());
      if (stream !== x) stream.dispose();
      stream = required(next);
    }
    return stream;
  }
}
