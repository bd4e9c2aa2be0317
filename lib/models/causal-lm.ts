// CausalLM, the base of all language models: computes logits and losses, and generates text.

import type { JsonObject } from '../../types/json.js';
import { takeFirstTokens } from '../data/first-tokens.js';
import { DsError } from '../errors.js';
import type { SequenceCache } from '../nn/attention.js';
import { loadBalancingLoss } from '../nn/experts.js';
import { Module } from '../nn/module.js';
import { PackedLinear, StoredParameter } from '../nn/packed-linear.js';
import type { Parameter } from '../nn/parameter.js';
import type { PretrainedDescription } from '../nn/pretrained-description.js';
import type { RecurrentSizes } from '../nn/recurrent-cache.js';
import type { RouterLoads } from '../nn/routers.js';
import type {
  SequenceParallel,
  SequencePart,
  SequenceRanks,
  TensorPlan,
} from '../parallel/index.js';
import { splitHeads } from '../parallel/rank-ranges.js';
import type { Pipelined, PipelineLayer, Values } from '../pipe/index.js';
import type { Device } from '../runtime/device.js';
import type { DType } from '../runtime/dtype.js';
import { formatValue } from '../runtime/format-value.js';
import { argumentError } from '../runtime/input-errors.js';
import { namesOf, readOptions } from '../runtime/options.js';
import { required } from '../runtime/required.js';
import { numel } from '../runtime/view.js';
import {
  crossEntropy,
  indexSelect,
  LossReport,
  noGrad,
  scope,
  Tensor,
  where,
} from '../tensor/index.js';
import { requireTensor } from '../tensor/ops/shapes.js';
import { isHeadEarly } from '../tensor/recompute/index.js';
import { placeResult } from '../tensor/tensor.js';
import type { BlockActivations } from './activation-shape.js';
import { type CacheShape, createCaches } from './caches.js';
import type { CausalLossOptions } from './causal-loss-options.js';
import { cachedDecoder, type Decoder, type GenerateOptions, generate } from './generate.js';
import { headLoss, type LanguageHead } from './language-head.js';
import { type ModelOrigin, mergeOrigin } from './origin.js';
import { inRows, type PlaceInputs, type Places, readPlaces } from './places.js';
import { readRows, rowLogProbs } from './row-log-probs.js';
import { type SaveWeightsOptions, saveWeights } from './save-weights.js';
import { noTokenPartsError, partsError } from './sequence-errors.js';
import type { LayerTokens } from './token-drop.js';
import { scopeFor, tokenLogProbs } from './token-log-probs.js';

export type { CausalLossOptions } from './causal-loss-options.js';

/** Configuration keys that all language models share. */
export interface CausalConfig {
  /** Number of tokens in the vocabulary. */
  vocabSize: number;
  /** Maximum number of tokens of a sequence. */
  maxSeq: number;
  /** Number of blocks. */
  layers: number;
  /** Number of query heads. */
  heads: number;
  /** Width of the residual stream. */
  channels: number;
  /** Number of key and value heads. Default: `heads`. */
  kvHeads?: number;
  /** Width of a head. Default: channels / heads. */
  headDim?: number;
  /** Recomputation in the backward, see GPT2Config and LlamaConfig. */
  activationCheckpointing?: boolean | 'selective';
  /** Target that the loss ignores; default -100. */
  ignoreIndex?: number;
}

/** Optional inputs of a forward. */
export interface CausalInputs extends PlaceInputs {
  /** Options of the loss. Default: the mean over the targets that are not ignored. */
  loss?: CausalLossOptions;
}

/** Inputs of one forward(). */
interface Call {
  tokens: Tensor;
  targets: Tensor | null;
  places: Places;
  how: CausalLossOptions;
}

/**
 * A causal language model. forward(tokens [B, T] i32 or i64) returns logits [B, T, V]. With targets
 * [B, T] it returns a loss, f32. Targets are shifted: each position has the token to predict, or
 * ignoreIndex. A subclass implements embeddings and blocks in `hiddenOf`, and a head.
 */
export abstract class CausalLM extends Module implements Pipelined, SequenceParallel {
  /** Configuration that the constructor received. */
  abstract readonly config: CausalConfig;
  /** Maps hidden states to logits of tokens. */
  abstract readonly lm_head: LanguageHead | PackedLinear;

  /** Returns hidden states [B, T, channels] of tokens [B, T], the input of the head. */
  protected abstract hiddenOf(tokens: Tensor, places: Places): Tensor;

  /** @internal Number of elements that a block keeps per token. */
  abstract blockActivations(): BlockActivations;

  /** @internal Number of weights in the blocks that a token does not use. */
  idleParameters(): number {
    return 0;
  }

  /** @internal hiddenOf(), cut into layers: see Pipelined. */
  protected abstract bodyLayers(): PipelineLayer[];

  /** Returns the plan that splits its layers over ranks, for parallel.parallelize(). */
  abstract tensorPlan(): TensorPlan;

  /** Returns the plan that distributes only its experts over ranks; null without experts. */
  expertPlan(): TensorPlan | null {
    return null;
  }

  /**
   * Returns the entries of config.json that follow from the sizes, and the transposed parameters.
   * `sourceConfig` is the config.json of the model's folder, or null.
   */
  protected abstract described(sourceConfig: JsonObject | null): PretrainedDescription;

  /** Number of key and value heads on this rank; null: all. */
  #keyHeads: number | null = null;

  /** Number of key and value heads on this rank, which its caches store. */
  get keyHeads(): number {
    const { heads, kvHeads = heads } = this.config;
    return this.#keyHeads ?? kvHeads;
  }

  /** Sets the heads of this rank; called by a tensor-parallel plan. */
  protected takeKeyHeads(count: number): void {
    this.#keyHeads = count;
  }

  /** Ranks that share the tokens of each sample; null without sequence parallelism. */
  #sequence: SequenceRanks | null = null;

  /**
   * @internal Enables sequence parallelism: from now on forward() on each of `ranks` takes whole
   * samples and computes its own tokens. It returns the result of a single rank: the loss, or all
   * logits. Throws DS_ARGUMENT for more ranks than heads.
   */
  shareSequence(ranks: SequenceRanks | null): void {
    const { heads, kvHeads = heads } = this.config;
    if (ranks && this.recurrentSizes) throw noTokenPartsError(this.constructor.name);
    if (ranks) splitHeads({ queries: heads, keys: kvHeads }, ranks.group, 'sequence_parallel_size');
    this.#sequence = ranks;
  }

  /** Metadata of the folder from which the model was loaded. */
  #origin: ModelOrigin | null = null;

  /** @internal Records the folder; called once after the model was built from it. */
  cameFrom(origin: ModelOrigin): void {
    this.#origin = origin;
  }

  /**
   * Returns the description for transformers: the sizes, and other entries of the original folder
   * (tokens, sampling and so on).
   */
  override describe(): PretrainedDescription {
    return mergeOrigin(this.described(this.#origin?.config ?? null), this.#origin);
  }

  /**
   * Writes a folder that fromPretrained() and transformers read: config.json, the weights in files
   * of at most 5 GB with their index, and generation_config.json if the model has one. See
   * saveWeights(). Resolves with the paths of the files.
   */
  save(dir: string, options: Omit<SaveWeightsOptions, 'format'> = {}): Promise<string[]> {
    return saveWeights(this, dir, { ...options, format: 'hf' });
  }

  /** @internal Returns embedding, blocks, norm and head; the loss reads the head's logits. */
  pipelineLayers(): PipelineLayer[] {
    const { lm_head } = this;
    const weight = lm_head instanceof PackedLinear ? null : lm_head.weight;
    const isTable = (module: Module): boolean =>
      module !== lm_head && weight !== null && (module as { weight?: unknown }).weight === weight;
    const modules = [lm_head, ...this.modules().filter(isTable)];
    const macs = numel((lm_head instanceof PackedLinear ? lm_head : lm_head.weight).shape);
    const [embedding, ...blocks] = this.bodyLayers() as [PipelineLayer, ...PipelineLayer[]];
    const embed = (tokens: Values): Values => {
      this.requireLength(tokens);
      return embedding.forward(tokens);
    };
    const head = { modules, macs, forward: (hidden: Values) => hidden };
    return [{ ...embedding, forward: embed }, ...blocks, head];
  }

  /** @internal Computes the loss from hidden states [B, T, channels] and targets [B, T]. */
  pipelineLoss(hidden: Values, targets: unknown): Tensor {
    return this.lossOf(hidden as Tensor, targets as Tensor, {});
  }

  /** Number of tokens in the vocabulary. */
  get vocabSize(): number {
    return this.config.vocabSize;
  }

  /** Width of the residual stream. */
  get hiddenSize(): number {
    return this.config.channels;
  }

  /** Maximum number of tokens of a sequence. */
  get maxSeq(): number {
    return this.config.maxSeq;
  }

  /** @internal Frees cached tables, which are rebuilt when needed. */
  releaseTables(): void {}

  /** @internal Maximum sequence length in a batch where each token has its own position. */
  get placedSeq(): number {
    return this.maxSeq;
  }

  /**
   * @internal The same limit if all sequences use the longest one's angles: see Places.angleLength.
   */
  get sharedAnglesSeq(): number {
    return this.placedSeq;
  }

  /**
   * Maps tokens [B, T] to logits [B, T, vocabSize]; the row stride may be a multiple of 64
   * elements. With targets [B, T], returns the loss, a scalar f32. The logits are not kept for
   * large vocabularies and for models with activation checkpointing; see linearCrossEntropy().
   * Throws DS_SHAPE if the sizes do not fit, DS_ARGUMENT for an unknown option.
   */
  override forward(
    tokens: Tensor,
    targets: Tensor | null = null,
    inputs: CausalInputs = {},
  ): Tensor {
    this.requireLength(tokens);
    const op = `${this.constructor.name} inputs`;
    const { loss, ...inputsWithoutLoss } = readOptions(op, inputs, namesOf.CausalInputs);
    const how = readOptions(`${op}.loss`, loss, namesOf.CausalLossOptions);
    const places = readPlaces(op, tokens, inputsWithoutLoss, this.config);
    const part = this.#sequence?.partOf(this, tokens);
    if (how.rows || how.tokens) return this.logsOf({ tokens, targets, places, how }, !part);
    if (part) {
      if (targets && this.routerLoss > 0) throw partsError(this.constructor.name, this.routerLoss);
      return this.forwardShare(part, { tokens, targets, places, how });
    }
    if (!targets) return this.logitsOf(this.hiddenOf(tokens, places));
    if (this.routerLoss === 0) return this.lossOf(this.hiddenOf(tokens, places), targets, how);
    return scope(() => {
      const { documents } = places;
      const mask = documents ? documents.reshape([-1]).ge(0).to('f32') : null;
      const loads: RouterLoads = { mask, layers: [] };
      const loss = this.lossOf(this.hiddenOf(tokens, { ...places, loads }), targets, how);
      if (loads.layers.length === 0) return loss;
      const total = loss.add(this.routerShare(loads, targets, how));
      for (const load of loads.layers) load.dispose();
      return total;
    });
  }

  private logsOf({ tokens, targets, places, how }: Call, isWhole: boolean): Tensor {
    const op = `${this.constructor.name} inputs.loss.${how.tokens ? 'tokens' : 'rows'}`;
    if (!targets) throw argumentError(op, 'targets', 'none');
    if (!isWhole) throw argumentError(op, 'whole rows', 'sequence parallelism');
    const { ignoreIndex: ignored = -100 } = this.config;
    return scopeFor(how.tokens, () => {
      const x = this.hiddenOf(tokens, places);
      if (!how.tokens) {
        const rows = readRows(op, how.rows, [targets, tokens]);
        const all = { rows, reports: how.reports };
        return rowLogProbs(x, targets, all, (y, t, more) =>
          this.lossOf(y, t, { divisor: 1, ...more }),
        );
      }
      const all = { ...how.tokens, ignored, vocabSize: this.vocabSize };
      return tokenLogProbs(x, targets, (y) => this.logitsOf(y), all);
    });
  }

  /** @internal Returns the loss of forward() with targets, without the loss of routers. */
  tokenLoss(tokens: Tensor, targets: Tensor, inputs: CausalInputs = {}): Tensor {
    this.requireLength(tokens);
    const { loss = {}, ...modelInputs } = inputs;
    const places = readPlaces(this.constructor.name, tokens, modelInputs, this.config);
    return scope(() => this.lossOf(this.hiddenOf(tokens, places), targets, loss));
  }

  /** @internal Returns the inputs of forward() for the first `seqlen` tokens of each row. */
  shortenInputs(inputs: readonly unknown[], seqlen: number): unknown[] {
    const cutInputs = (value: unknown): unknown =>
      value instanceof Tensor ? takeFirstTokens(value, seqlen) : value;
    const [tokens, targets, reported, ...rest] = inputs;
    const optionalInputs = this.requireInputs(reported);
    const { documents, positions } = optionalInputs;
    const places = {
      ...(documents ? { documents: cutInputs(documents) } : {}),
      ...(positions ? { positions: cutInputs(positions) } : {}),
    };
    const others = reported && { ...optionalInputs, ...places };
    const all = [cutInputs(tokens), cutInputs(targets), others, ...rest];
    return all.slice(0, inputs.length);
  }

  /** @internal Returns the inputs of forward() without the layers of `drop`: see DropsLayers. */
  dropLayers(
    [tokens, targets = null, reported, ...rest]: readonly unknown[],
    drop: { factors(layers: number): number[] },
  ): unknown[] {
    const layerFactors = drop.factors(this.config.layers);
    const others = { ...this.requireInputs(reported, 'layerFactors'), layerFactors };
    return [tokens, targets, others, ...rest];
  }

  /** @internal Returns the inputs of forward() with the tokens of `drop`: see DropsTokens. */
  dropTokens(
    [tokens, targets = null, reported, ...rest]: readonly unknown[],
    layerTokens: LayerTokens,
  ): unknown[] {
    const others = { ...this.requireInputs(reported, 'layerTokens'), layerTokens };
    return [tokens, targets, others, ...rest];
  }

  /**
   * Checks the optional inputs of forward(), which may not include `drawn`: the configuration sets
   * it. Throws DS_ARGUMENT for other inputs.
   */
  private requireInputs(inputs: unknown, drawn: keyof CausalInputs | null = null): CausalInputs {
    const op = `${this.constructor.name} inputs`;
    const reported = readOptions(op, inputs as CausalInputs | undefined, namesOf.CausalInputs);
    const twice = drawn && reported[drawn];
    if (twice == null) return reported;
    const hint = 'Omit it, or disable the section of the configuration.';
    const expected = 'no value, because the configuration draws them';
    throw argumentError(`${op}.${drawn}`, expected, formatValue(twice), hint);
  }

  /** @internal Weight of the routers' loss in the total loss. */
  get routerLoss(): number {
    return 0;
  }

  /** Returns the routers' loss, weighted by this micro-batch's fraction of the batch's targets. */
  private routerShare(loads: RouterLoads, targets: Tensor, { divisor }: CausalLossOptions): Tensor {
    const part = loadBalancingLoss(loads, targets.numel).mul(this.routerLoss);
    if (divisor === undefined) return part;
    const count = targets
      .ne(this.config.ignoreIndex ?? -100)
      .to('f32')
      .sum();
    // As in the loss of the tokens: 0 without targets, not 0 / 0.
    const totalTargets = divisor instanceof Tensor ? where(divisor.eq(0), 1, divisor) : divisor;
    return part.mul(count).div(totalTargets);
  }

  /** Runs the forward with sequence parallelism, where each rank has a part of the tokens. */
  private forwardShare(part: SequencePart, { tokens, targets, places, how }: Call): Tensor {
    const positions = places.positions && part.of(places.positions);
    const sharePlaces = { ...places, positions, start: places.start + part.share.first };
    const x = part.run(() => this.hiddenOf(part.of(tokens), sharePlaces));
    if (!targets) return part.whole(this.logitsOf(x));
    const { ignoreIndex = -100 } = this.config;
    const countTargets = (): Tensor => noGrad(() => targets.ne(ignoreIndex).to('f32').sum());
    const divisor = how.divisor ?? countTargets();
    if (!(how.report instanceof LossReport)) {
      return part.sum(this.lossOf(x, part.of(targets), { ...how, divisor }));
    }
    const report = new LossReport(how.report.counted.device);
    const loss = part.sum(this.lossOf(x, part.of(targets), { ...how, divisor, report }));
    part.total(report.counted);
    part.total(report.correct);
    how.report.add(report.counted, report.correct);
    report.dispose();
    return loss;
  }

  /** @internal Converts the head's products to logits, which the loss keeps; null: no change. */
  protected get finishLogits(): ((products: Tensor) => Tensor) | null {
    return null;
  }

  /** @internal Returns logits [.., V] of hidden states [.., channels]. */
  logitsOf(x: Tensor): Tensor {
    const finish = this.finishLogits;
    return finish ? scope(() => finish(this.lm_head.call(x))) : this.lm_head.call(x);
  }

  private lossOf(x: Tensor, targets: Tensor, loss: CausalLossOptions): Tensor {
    const { ignoreIndex, activationCheckpointing } = this.config;
    if (this.finishLogits) {
      const { skipIgnored: _, ...options } = { ...loss, ignoreIndex: ignoreIndex ?? -100 };
      return scope(() => crossEntropy(this.logitsOf(x), targets, options));
    }
    const recompute = activationCheckpointing === true || undefined;
    const earlyWeight = (recompute && isHeadEarly()) || undefined;
    return headLoss(this.lm_head, x, targets, { ...loss, ignoreIndex, recompute, earlyWeight });
  }

  /** Returns logits [B, 1, V] of the token after `tokens`; the caches hold the earlier tokens. */
  next(tokens: Tensor, caches: readonly SequenceCache[]): Tensor {
    // Layers without attention or a state keep a length of 0.
    const start = Math.max(0, ...caches.map(({ length }) => length));
    const x = this.hiddenOf(tokens, { ...inRows, start, caches });
    return this.logitsOf(x.narrow(1, x.size(1) - 1, 1).contiguous());
  }

  /** @internal Returns hidden states [B, T, channels], for heads of other tasks. */
  hidden(tokens: Tensor, places: Places): Tensor {
    this.requireLength(tokens);
    return this.hiddenOf(tokens, places);
  }

  /** The dtype and device of hidden states, as for the first parameter. */
  get computesIn(): { dtype: DType; device: Device } {
    const isComputed = (parameter: Parameter): boolean => !(parameter instanceof StoredParameter);
    return required(this.parameters().find(isComputed));
  }

  /**
   * @internal Returns logits [S, V] after the positions `ends` [S], i32, of tokens [B, T]. `ends`
   * ascend, so with B T of them they are all positions. If the head's products are the logits, it
   * may write them to `into` [S, V].
   */
  logitsAfter(tokens: Tensor, places: Places, ends: Tensor, into: Tensor | null = null): Tensor {
    const x = this.hiddenOf(tokens, places);
    const rows = x.reshape([-1, x.size(2)]);
    const last = ends.size(0) === rows.size(0) ? rows : indexSelect(rows, 0, ends);
    if (!into || this.finishLogits) return this.logitsOf(last);
    return placeResult(into, () => this.logitsOf(last));
  }

  /** @internal Sizes of layers with a recurrent state instead of keys and values; or null. */
  get recurrentSizes(): RecurrentSizes | null {
    return null;
  }

  /** @internal Returns the shape of a token's keys and values in the cache of one layer. */
  cacheShape(): CacheShape {
    const { heads, channels, layers, headDim = channels / heads } = this.config;
    const { dtype, device } = this.computesIn;
    const { recurrentSizes: recurrent } = this;
    return { layers, kvHeads: this.keyHeads, headDim, dtype, device, recurrent };
  }

  /** @internal Returns the same shape for a paged cache, which may store less. */
  pagedShape(): CacheShape {
    return this.cacheShape();
  }

  /** Creates empty caches with capacity for `capacity` tokens in each of `batch` rows. */
  caches(batch: number, capacity: number): SequenceCache[] {
    return createCaches(this.cacheShape(), batch, capacity);
  }

  /** Creates a decoder that caches keys and values of up to `capacity` tokens. */
  decoder(capacity: number): Decoder {
    return cachedDecoder(this, capacity);
  }

  /** @internal Returns whether a cache of `from` tokens becomes invalid at `to` tokens. */
  rereads(_from: number, _to: number): boolean {
    return false;
  }

  /** Returns the prompt's tokens and up to `maxNewTokens` sampled ones, see generate(). */
  generate(prompt: readonly number[], options: GenerateOptions): number[] {
    return generate(this, prompt, options);
  }

  private requireLength(tokens: Values): asserts tokens is Tensor {
    requireTensor(this.constructor.name, tokens);
    if (tokens.ndim === 2 && tokens.size(1) <= this.maxSeq) return;
    throw new DsError({
      code: 'DS_SHAPE',
      op: this.constructor.name,
      expected: `tokens [B, T] with T <= ${this.maxSeq}`,
      got: `[${tokens.shape.join(', ')}]`,
      hint: `The model has ${this.maxSeq} positions: create the dataset with at most that length (length, seq).`,
    });
  }
}
