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
import { flattenStream, streaming } from '../block-layers.js';
import { listRunning, requireOwnTokens, scaleBranch } from '../layer-factors.js';
import { inRows, type Places } from '../places.js';
import {
  type DrawnTokens,
  drawTokens,
  droppedTokensError,
  replaceChosen,
  selectChosen,
} from '../token-drop.js';
import { addVersions, ENTRY, EXIT, enterVersions, joinVersions } from './alt-up.js';
import { AltUpBlock } from './alt-up-block.js';
import type { AttentionContext } from './attention.js';
import { RotaryBlock, sumStream } from './block.js';
import { droppedSourceError, overflowError, requireOneRegime } from './body-errors.js';
import { createScaleTable, numberChunks } from './chunked-layers.js';
import type { BodySizes } from './config.js';
import { addLayerInputs, computeLayerInputs, INPUT_MODULES } from './layer-inputs.js';
import { setNamed } from './named-module.js';
import { type AnyNorm, createNorm, type Norm, normalizeSum } from './norms.js';
import { queryFactor } from './rope-scaling.js';
import { type Angles, RotaryTable } from './rotary-table.js';
import {
  createKindLayers,
  type KindBlock,
  keepShared,
  releaseShared,
  runCheckpointedBlocks,
  type SharedKeyValues,
} from './shared-keys.js';
import type { PositionTable } from './traits.js';

/** A block on the stream, or on the tokens `chosen` [B, R] of it, each at its own position. */
function runOnChosen(
  [branch, residual]: [Tensor, Tensor | null],
  chosen: Tensor | null,
  context: AttentionContext,
  through: (b: Tensor, r: Tensor | null, context: AttentionContext) => [Tensor, Tensor | null],
): [Tensor, Tensor | null] {
  if (!chosen) return through(branch, residual, context);
  const stream = sumStream(branch, residual);
  const some = (all: Tensor | null): Tensor | null => all?.gather(1, chosen) ?? null;
  const positions = some(context.positions) ?? chosen;
  const [documents, chunks] = [context.documents, context.chunks ?? null].map(some);
  const at = { ...context, positions, documents: documents ?? null, chunks: chunks ?? null };
  const replaced = replaceChosen(stream, chosen, (part) => {
    return sumStream(...through(part, null, at));
  });
  return [replaced, null];
}

/** The places of tokens, and values that the blocks of one forward share. */
interface ForwardInputs extends Places {
  layerInputs?: Tensor | null;
  shared?: SharedKeyValues;
}

/** The name of the norm behind the last block; null: none. */
export const lastNorm = ({ traits, sumNorms }: Pick<BodySizes, 'traits' | 'sumNorms'>) =>
  sumNorms ? null : (traits.norm?.last ?? 'norm');

/** Returns `value` rounded to a dtype. */
function roundTo(value: number, dtype: DType): number {
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
  /** Scales of queries in layers that do not rotate, or of channels that do not. */
  private readonly queryScales: RotaryTable | null;
  /** Factors of embeddings as each dtype has them. */
  private readonly rootFactors = new Map<string, number>();

  /** Creates `body.layers` blocks. Memory is allocated at first use. */
  constructor(private readonly body: BodySizes) {
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
    if (names.embedNorm) Object.assign(this, { [names.embedNorm]: createNorm(body, channels) });
    const Block = body.altUp ? AltUpBlock : RotaryBlock;
    const blocks = windows.map((_, layer) => new Block(body, layer));
    setNamed(this, 'layers', names.layers ?? 'layers', blocks);
    const last = lastNorm(body);
    if (last !== null) Object.assign(this, { [last]: createNorm(body, channels) });
    if (embedDim !== channels) {
      this.project_in = new Linear(embedDim, channels, { bias: false });
      this.project_out = new Linear(channels, embedDim, { bias: false });
    }
    addLayerInputs(this, body, init);
    addVersions(this, body);
    const { rotaryDim, ropeTheta, full } = body;
    const { backward = false } = body.traits.rope ?? {};
    const widest = { ropeTheta, rotaryDim: full?.headDim ?? rotaryDim, backward };
    this.rotary = new RotaryTable(widest, ropeScaling, maxSeq);
    const factorAt = queryFactor(ropeScaling ?? null);
    const isPart = factorAt !== null && rotaryDim < body.headDim;
    this.queryRotary =
      factorAt && !isPart ? new RotaryTable(widest, ropeScaling, maxSeq, factorAt) : null;
    this.queryScales = createScaleTable(body, isPart ? factorAt : null);
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
    this.queryScales?.release();
    this.body.slopes?.release();
  }

  /** Returns the scaled embedding of tokens. */
  private embedTokens(tokens: Tensor, places: Places): Tensor {
    const { positions, names } = this.body.traits;
    const x = this.scaleTokens(tokens);
    if (!positions && !names?.embedNorm) return x;
    return scope(() => {
      const placed =
        typeof positions === 'object' ? x.add(this.positionRows(positions, x, places)) : x;
      return names?.embedNorm ? this.child(names.embedNorm).call(placed) : placed;
    });
  }

  /** Returns the rows [B or 1, T, C] of a table of positions. */
  private positionRows({ table, offset }: PositionTable, x: Tensor, places: Places): Tensor {
    const rows = (this as unknown as Record<string, Embedding>)[table] as Embedding;
    const { positions, start } = places;
    if (positions) return rows.call(positions.add(offset));
    return rows.weight.narrow(0, offset + start, x.size(1));
  }

  private scaleTokens(tokens: Tensor): Tensor {
    const rows = this.embed_tokens.call(tokens);
    const x = this.project_in ? this.project_in.call(rows) : rows;
    const { traits, factors } = this.body;
    if (traits.overflowsF16 && x.dtype === 'f16') throw overflowError(traits.name);
    const { embed } = factors;
    if (embed === 1) return x;
    if (traits.scales?.embed !== 'rootChannels') return x.mul(embed);
    return x.mul(this.roundedFactor(embed, x.dtype));
  }

  private roundedFactor(factor: number, dtype: DType): number {
    const name = `${dtype} ${factor}`;
    const cached = this.rootFactors.get(name) ?? roundTo(factor, dtype);
    this.rootFactors.set(name, cached);
    return cached;
  }

  /** Returns the further embeddings of all blocks, for the embedding `x`; null without them. */
  private layerInputs(tokens: Tensor, x: Tensor): Tensor | null {
    const roundFactor = (factor: number): number => this.roundedFactor(factor, x.dtype);
    return computeLayerInputs(this, this.body, { tokens, x }, roundFactor);
  }

  /** Returns hidden states in the scale of the logits. */
  private finishHidden(added: Tensor, residual: Tensor | null): Tensor {
    const { last: norm, project_out: project, body } = this;
    const branch = joinVersions(this, body, added);
    const hidden = norm ? normalizeSum(branch, residual, norm)[1] : sumStream(branch, residual);
    return scaleBranch(project ? project.call(hidden) : hidden, this.body.factors.logits);
  }

  /**
   * Returns hidden states [B, T, C] of tokens [B, T]. Throws DS_ARGUMENT for an option that the
   * blocks do not support.
   */
  override forward(tokens: Tensor, places: Places = inRows): Tensor {
    const embedded = this.embedTokens(tokens, places);
    requireOwnTokens(embedded, places.factors);
    if (places.factors && this.body.sharedKeys) throw droppedSourceError(this.body.traits.name);
    const keepsInputsOnly = this.body.activationCheckpointing && !places.caches;
    const drawn = this.drawChosen(embedded, places);
    const layerInputs = this.layerInputs(tokens, embedded);
    const all = { ...places, layerInputs };
    const stream = scope(() => enterVersions(this, this.body, embedded));
    if (stream !== embedded) embedded.dispose();
    const out = keepsInputsOnly
      ? this.runCheckpointed(stream, all, drawn)
      : this.runFused(stream, all, drawn);
    for (const tensor of [drawn?.chosen, layerInputs]) tensor?.dispose();
    return out;
  }

  private drawChosen(x: Tensor, { layerTokens, loads }: Places): DrawnTokens | null {
    const patternOf = (layer: number) => this.layers[layer]?.self_attn?.sparsity ?? null;
    const drawn = drawTokens(x, layerTokens, patternOf);
    if (!drawn) return null;
    if (this.body.traits.layerKinds)
      throw droppedTokensError('layers that differ', 'Omit random_ltd');
    if (loads)
      throw droppedTokensError('routers with a balancing loss', 'Set routerAuxLossCoef to 0');
    const looksBack = this.body.windows.some((window, i) => window !== null && drawn.draws.has(i));
    if (looksBack) throw droppedTokensError('blocks with a window', 'List blocks without a window');
    return drawn;
  }

  private createContext(x: Tensor, places: ForwardInputs): AttentionContext {
    const { documents, positions, reach, angleLength = null, start, loads = null } = places;
    const { layerInputs = null, shared = new Map() } = places;
    const share = sharedTokens();
    const all = share?.whole ?? x.size(1);
    const chunks = places.caches ? null : numberChunks(this.body, all, places, x);
    const passed = { loads, layerInputs, shared, chunks };
    // With a head exchange this rank rotates only its own tokens; otherwise it has all tokens.
    const T = share?.heads ? share.count : all;
    if (!positions) {
      const at = (table: RotaryTable): Angles =>
        table.rowsAt(start, T, { length: share ? all : start + T, like: x });
      return { ...this.findTable(at), positions, documents, ...passed };
    }
    // With a length-dependent scaling the angles follow from the sequence's length, which is
    // unknown here.
    if (angleLength === null) requireOneRegime(this.body.ropeScaling, reach ?? all);
    const at = (table: RotaryTable): Angles =>
      reach !== null
        ? table.lastingRows(reach, { length: angleLength ?? 1, like: x })
        : table.rowsAt(0, all, { length: all, like: x });
    return { ...this.findTable(at), positions, documents, ...passed };
  }

  private findTable(
    at: (table: RotaryTable) => Angles,
  ): Angles & Pick<AttentionContext, 'ofWindows' | 'ofQueries' | 'queryScales'> {
    const { rotary, windowRotary, queryRotary, queryScales } = this;
    return {
      ...at(rotary),
      ofWindows: windowRotary && at(windowRotary),
      ofQueries: queryRotary && at(queryRotary),
      queryScales: queryScales && at(queryScales),
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
      ...this.versionModules(ENTRY),
    ];
  }

  private versionModules(name: typeof ENTRY | typeof EXIT): readonly Module[] {
    return (this as unknown as Partial<Record<string, Module[]>>)[name] ?? [];
  }

  /**
   * @internal Returns the body as pipeline layers, as GPT-2 does. Every layer has its own table of
   * angles.
   */
  pipelineLayers(): PipelineLayer[] {
    const keepsInputsOnly = this.body.activationCheckpointing === true;
    const through = (block: RotaryBlock) => (branch: Tensor, residual: Tensor | null) =>
      block.call(branch, residual, this.createContext(branch, inRows));
    return [
      {
        modules: this.firstModules(),
        macs: 0,
        forward: (tokens) => scope(() => this.enterBlocks(tokens as Tensor)),
      },
      ...(this.body.traits.layerKinds
        ? createKindLayers(
            this.body,
            this.layers.map((block) => [[block], this.kindBlock(block, inRows)] as const),
            keepsInputsOnly,
          )
        : this.layers.map((block) => ({
            modules: [block],
            forward: streaming(through(block), keepsInputsOnly),
          }))),
      {
        modules: [this.last, this.project_out, ...this.versionModules(EXIT)].filter(
          (item) => item != null,
        ),
        forward: (values) => scope(() => this.finishHidden(...flattenStream(values))),
      },
    ];
  }

  /**
   * Returns the inputs of the first block: the stream, and the further embeddings if there are any.
   */
  private enterBlocks(tokens: Tensor): Tensor | Tensor[] {
    const x = this.embedTokens(tokens, inRows);
    const layerInputs = this.layerInputs(tokens, x);
    const stream = enterVersions(this, this.body, x);
    return layerInputs ? [stream, layerInputs] : stream;
  }

  /**
   * Runs the blocks. Every addition to the stream is part of a normalization; the branch is freed
   * after it.
   */
  private runFused(x: Tensor, places: ForwardInputs, drawn: DrawnTokens | null): Tensor {
    const context = this.createContext(x, places);
    let [branch, residual]: [Tensor, Tensor | null] = [x, null];
    for (const { layer, index, factor } of listRunning(this.layers, places.factors)) {
      const used = [branch, residual];
      if (places.taps?.layers.includes(index)) {
        const stream = residual ? branch.add(residual) : branch;
        places.taps.take(this.body.altUp ? stream.narrow(2, 0, this.body.channels) : stream);
        if (stream !== branch) stream.dispose();
      }
      const cache = places.caches?.[index] ?? null;
      const through = (b: Tensor, r: Tensor | null, at: AttentionContext) =>
        layer.call(b, r, at, cache, factor);
      [branch, residual] = scope(() => {
        const out = runOnChosen([branch, residual], selectChosen(drawn, index), context, through);
        keepShared(context.shared, index);
        return out;
      });
      // The first stream of a parallel block is the embedding itself.
      for (const tensor of used) {
        if (tensor !== branch && tensor !== residual) tensor?.dispose();
      }
    }
    releaseShared(context.shared);
    return scope(() => this.finishHidden(branch, residual));
  }

  /**
   * Runs the blocks in segments and keeps one tensor per segment. The sums are those of runFused(),
   * bit for bit.
   */
  private runCheckpointed(x: Tensor, places: ForwardInputs, drawn: DrawnTokens | null): Tensor {
    if (this.body.traits.layerKinds)
      return this.finishHidden(this.runCheckpointedKinds(x, places), null);
    if (places.loads)
      return this.finishHidden(this.runCheckpointedBeside(x, places, places.loads), null);
    const layers = listRunning(this.layers, places.factors).map(({ layer, index, factor }) => {
      return (input: Tensor, ...given: readonly (Tensor | null)[]): Tensor => {
        const [documents = null, positions = null, chosen = null] = given;
        const context = this.createContext(input, { ...places, documents, positions });
        const through = (b: Tensor, r: Tensor | null, at: AttentionContext) =>
          layer.call(b, r, at, null, factor);
        const seen = selectChosen(drawn, index, chosen);
        const [branch, residual] = runOnChosen([input, null], seen, context, through);
        return sumStream(branch, residual);
      };
    });
    const segments = this.body.numberCheckpoints ?? null;
    const { documents, positions } = places;
    const given = [documents, positions, drawn?.chosen ?? null];
    const stream = checkpointSequential(layers, segments, x, ...given);
    return this.finishHidden(stream, null);
  }

  /** A block for a stream alone. */
  private kindBlock(block: RotaryBlock, places: Places, factor = 1): KindBlock {
    return (x, given) => {
      const context = this.createContext(x, { ...places, ...given });
      return sumStream(...block.call(x, null, context, null, factor));
    };
  }

  private runCheckpointedKinds(x: Tensor, places: ForwardInputs): Tensor {
    const { documents, positions, layerInputs = null } = places;
    const blocks = listRunning(this.layers, places.factors).map(({ layer, factor }) =>
      this.kindBlock(layer, places, factor),
    );
    return runCheckpointedBlocks(this.body, blocks, x, { documents, positions, layerInputs });
  }

  /**
   * Returns the stream after the blocks. Each checkpointed segment also returns its routing
   * statistics.
   */
  private runCheckpointedBeside(x: Tensor, places: Places, { mask, layers }: RouterLoads): Tensor {
    const { documents, positions } = places;
    let stream = x;
    const blocks = listRunning(this.layers, places.factors);
    for (const part of segmentsOf(blocks, this.body.numberCheckpoints ?? null)) {
      const through = (input: Tensor, ...given: readonly (Tensor | null)[]): Tensor[] => {
        const [documents = null, positions = null, mask = null] = given;
        const loads: RouterLoads = { mask, layers: [] };
        const out = part.reduce((from, { layer, factor }) => {
          const context = this.createContext(from, { ...places, documents, positions, loads });
          return sumStream(...layer.call(from, null, context, null, factor));
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
