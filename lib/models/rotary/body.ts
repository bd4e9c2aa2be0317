// The body of all families with rotary positions, under the names of transformers' models. The
// declaration of a family (traits.ts) sets norms, feed-forward blocks, scales and angles.

import { Embedding } from '../../nn/embedding.js';
import { normal } from '../../nn/initializers.js';
import { Linear } from '../../nn/linear.js';
import { Module } from '../../nn/module.js';
import type { RouterLoads } from '../../nn/routers.js';
import type { PipelineLayer } from '../../pipe/index.js';
import type { DType } from '../../runtime/dtype.js';
import { required } from '../../runtime/required.js';
import {
  checkpoint,
  checkpointSequential,
  scope,
  segmentsOf,
  sharedTokens,
  Tensor,
} from '../../tensor/index.js';
import { streaming, streamOf } from '../block-layers.js';
import { requireOwnTokens, running, scaled } from '../layer-factors.js';
import { inRows, type Places } from '../places.js';
import { aroundChosen, chosenFor, type DrawnTokens, drawTokens, refused } from '../token-drop.js';
import type { AttentionContext } from './attention.js';
import { RotaryBlock, sumOf } from './block.js';
import { droppedSource, overflow, requireOneRegime } from './body-errors.js';
import type { Body } from './config.js';
import { addLayerInputs, INPUT_MODULES, layerInputsOf } from './layer-inputs.js';
import { setNamed } from './named-module.js';
import { type AnyNorm, type Norm, normalized, normOf } from './norms.js';
import { queryFactor } from './rope-scaling.js';
import { type Angles, RotaryTable } from './rotary-table.js';
import {
  checkpointedKinds,
  type KindBlock,
  keepShared,
  kindLayers,
  releaseShared,
  type Shared,
} from './shared-keys.js';
import type { PositionTable } from './traits.js';

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
interface ForwardInputs extends Places {
  layerInputs?: Tensor | null;
  shared?: Shared;
}

/** The name of the norm behind the last block; null: none. */
export const lastNorm = ({ traits, sumNorms }: Pick<Body, 'traits' | 'sumNorms'>) =>
  sumNorms ? null : (traits.norm?.last ?? 'norm');

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
  /** From a narrow embedding to the channels; absent: the embedding has all channels. */
  declare readonly project_in?: Linear;
  /** Back to the width of the embedding. */
  declare readonly project_out?: Linear;
  private readonly rotary: RotaryTable;
  private readonly windowRotary: RotaryTable | null;
  private readonly queryRotary: RotaryTable | null;
  /** Factors of embeddings as each dtype has them. */
  private readonly rootFactors = new Map<string, number>();

  /** Creates `body.layers` blocks. Memory is allocated at first use. */
  constructor(private readonly body: Body) {
    super();
    const { vocabSize, maxSeq, channels, windows, ropeScaling, padTokenId, windowTheta } = body;
    const { names = {}, positions } = body.traits;
    const init = normal(body.initializerRange);
    const { embedDim = channels } = body;
    const table = new Embedding(vocabSize, embedDim, {
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
    const last = lastNorm(body);
    if (last !== null) Object.assign(this, { [last]: normOf(body, channels) });
    if (embedDim !== channels) {
      this.project_in = new Linear(embedDim, channels, { bias: false });
      this.project_out = new Linear(channels, embedDim, { bias: false });
    }
    addLayerInputs(this, body, init);
    const { rotaryDim, ropeTheta, full } = body;
    const widest = { ropeTheta, rotaryDim: full?.headDim ?? rotaryDim };
    this.rotary = new RotaryTable(widest, ropeScaling, maxSeq);
    this.queryRotary = queryFactor(ropeScaling ?? null)
      ? new RotaryTable(widest, ropeScaling, maxSeq, true)
      : null;
    this.windowRotary =
      windowTheta === null
        ? null
        : new RotaryTable({ rotaryDim, ropeTheta: windowTheta }, null, maxSeq);
  }

  private child(name: string): AnyNorm {
    return required((this as unknown as Record<string, AnyNorm>)[name]);
  }

  /** The norm behind the last block; null: none. */
  private get last(): AnyNorm | null {
    const name = lastNorm(this.body);
    return name === null ? null : this.child(name);
  }

  /** @internal Frees the tables of angles. */
  releaseTables(): void {
    this.rotary.release();
    this.windowRotary?.release();
    this.queryRotary?.release();
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
    const rows = this.embed_tokens.call(tokens);
    const x = this.project_in ? this.project_in.call(rows) : rows;
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
    const roundFactor = (factor: number): number => this.rounded(factor, x.dtype);
    return layerInputsOf(this, this.body, { tokens, x }, roundFactor);
  }

  /** Hidden states, scaled as the logits. */
  private finished(branch: Tensor, residual: Tensor | null): Tensor {
    const { last, project_out: project } = this;
    const hidden = last ? normalized(branch, residual, last)[1] : sumOf(branch, residual);
    return scaled(project ? project.call(hidden) : hidden, this.body.factors.logits);
  }

  /**
   * Returns hidden states [B, T, C] of tokens [B, T]. Throws DS_ARGUMENT for an option that the
   * blocks do not support.
   */
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

  private contextOf(x: Tensor, places: ForwardInputs): AttentionContext {
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

  private anglesBy(
    at: (table: RotaryTable) => Angles,
  ): Angles & Pick<AttentionContext, 'ofWindows' | 'ofQueries'> {
    const { rotary, windowRotary, queryRotary } = this;
    return {
      ...at(rotary),
      ofWindows: windowRotary && at(windowRotary),
      ofQueries: queryRotary && at(queryRotary),
    };
  }

  /** The modules of embedded(). */
  private firstModules(): Module[] {
    const { positions, names } = this.body.traits;
    const others = [typeof positions === 'object' ? positions.table : null, names?.embedNorm];
    const fields = this as unknown as Record<string, Module>;
    const inputs = this.body.layerInputDim ? INPUT_MODULES : [];
    return [
      this.embed_tokens,
      ...(this.project_in ? [this.project_in] : []),
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
        modules: [this.last, this.project_out].filter((item) => item != null),
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
  private fused(x: Tensor, places: ForwardInputs, drawn: DrawnTokens | null): Tensor {
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
  private checkpointed(x: Tensor, places: ForwardInputs, drawn: DrawnTokens | null): Tensor {
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

  private checkpointedKinds(x: Tensor, places: ForwardInputs): Tensor {
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
