// The language model over the shared body, and the construction of a family from its traits.
import { DsError } from '../../errors.js';
import type { Embedding } from '../../nn/embedding.js';
import { normal, zeros } from '../../nn/initializers.js';
import { Linear } from '../../nn/linear.js';
import { PackedLinear } from '../../nn/packed-linear.js';
import type { PretrainedDescription } from '../../nn/pretrained-description.js';
import type { RecurrentSizes } from '../../nn/recurrent-cache.js';
import type { TensorPlan } from '../../parallel/plan.js';
import type { PipelineLayer } from '../../pipe/index.js';
import { formatValue } from '../../runtime/format-value.js';
import { argumentError } from '../../runtime/input-errors.js';
import { type Tensor, tanh } from '../../tensor/index.js';
import type { BlockActivations } from '../activation-shape.js';
import type { CacheShape } from '../caches.js';
import { CausalLM } from '../causal-lm.js';
import type { LanguageHead } from '../language-head.js';
import { type Family, type FolderOptions, readPretrained } from '../model-folder.js';
import { NormalizedHead } from '../normalized-head.js';
import type { Places } from '../places.js';
import { TiedHead } from '../tied-head.js';
import { rotaryBlockActivations } from './activations.js';
import { RotaryModel } from './body.js';
import {
  type RotaryConfig,
  type RotaryOptions,
  type RotarySizes,
  readRotaryConfig,
  toBody,
} from './config.js';
import { convStatesOf } from './conv-config.js';
import { stateSizes } from './delta-config.js';
import { LatentAttention } from './latent-attention.js';
import { hasOwnSizes, listShapes } from './layer-kinds.js';
import { spaceSizes } from './mamba-config.js';
import { setAtPath, setNamed } from './named-module.js';
import { describeRotary, parseRotaryConfig, readDenseSeq, rotaryLayout } from './pretrained.js';
import { angleRegime, changesAngles } from './rope-scaling.js';
import { rotaryExpertPlan, rotaryTensorPlan } from './tensor-plan.js';
import type { RotaryTraits } from './traits.js';

/**
 * A language model with rotary positions; see CausalLM. Angles are f32 for all weight dtypes.
 * Initialization as in transformers: N(0, initializerRange^2); biases and the padding row are 0.
 */
export abstract class RotaryLM extends CausalLM {
  /**
   * The token table, the blocks and the last norm. OPT has them one module deeper, as
   * `model.decoder`.
   */
  declare readonly model: RotaryModel;
  readonly #stack: RotaryModel;
  /** Key heads of this rank in layers without a window; null: all. */
  #fullKeys: number | null = null;
  /** Maps channels to the logits of tokens. */
  declare readonly lm_head: Linear | TiedHead | NormalizedHead | PackedLinear;
  /** The complete configuration. */
  readonly config: RotarySizes;

  /** @internal Throws DS_ARGUMENT for an option that the family lacks and for invalid sizes. */
  protected constructor(
    private readonly traits: RotaryTraits,
    given: RotaryConfig,
  ) {
    super();
    const config = readRotaryConfig(traits, given);
    const { initializerRange } = config;
    this.config = config;
    const { model = 'model', head = 'lm_head' } = traits.names ?? {};
    this.#stack = new RotaryModel(toBody(traits, config));
    if (model.includes('.')) setAtPath(this, model, this.#stack);
    else setNamed(this, 'model', model, this.#stack);
    setNamed(this, 'lm_head', head, this.createHead(config));
    for (const module of this.modules()) {
      if (!(module instanceof Linear)) continue;
      module.weight.initialize(normal(initializerRange));
      module.bias?.initialize(zeros);
    }
  }

  private createHead(sizes: RotarySizes): LanguageHead {
    const { tied, embedDim: channels = sizes.channels, vocabSize, initializerRange } = sizes;
    const { biases, normalizedHead } = this.traits;
    if (tied) return new TiedHead(this.#stack.embed_tokens);
    if (normalizedHead) return new NormalizedHead(channels, vocabSize, initializerRange);
    return new Linear(channels, vocabSize, { bias: biases.head ?? false });
  }

  /**
   * Loads a folder of this class. Like models.fromPretrained(), but rejects with DS_CHECKPOINT if
   * the folder has a model of another class. Rejects with DS_ARGUMENT for invalid options, and if
   * it is called without its class.
   */
  static async fromPretrained<Model extends RotaryLM>(
    this: { readonly family: Family<Model, RotaryOptions> },
    dir: string,
    options: RotaryOptions & FolderOptions = {},
  ): Promise<Model> {
    // biome-ignore lint/complexity/noThisInStatic: the class of the call, not RotaryLM
    const family = this?.family;
    if (!family) {
      const expected = 'a call on a class, such as Llama.fromPretrained(dir)';
      throw argumentError('fromPretrained', expected, 'a function without its class');
    }
    return readPretrained(dir, [family], options);
  }

  override tensorPlan(): TensorPlan {
    const body = toBody(this.traits, this.config);
    return rotaryTensorPlan(body, ({ keys }, of) => {
      this.takeKeyHeads(keys);
      const { full, heads } = body;
      if (full) this.#fullKeys = of({ queries: heads, keys: full.kvHeads ?? keys }).keys;
    });
  }

  override expertPlan(): TensorPlan | null {
    const layers = rotaryExpertPlan(toBody(this.traits, this.config));
    return layers && { layers };
  }

  /** @internal */
  override get recurrentSizes(): RecurrentSizes | null {
    const { delta, conv, mamba, channels } = this.config;
    if (conv) return convStatesOf(conv, channels);
    if (mamba) return spaceSizes(this.traits, mamba);
    return delta ? stateSizes(delta) : null;
  }

  /** @internal */
  override cacheShape(): CacheShape {
    const body = toBody(this.traits, this.config);
    const shape = super.cacheShape();
    const { feedLayers } = body;
    if (feedLayers?.includes(true)) {
      const keys = (layer: number): number => (feedLayers[layer] ? 0 : this.keyHeads);
      return { ...shape, byLayer: listShapes(body, keys) };
    }
    if (!hasOwnSizes(body)) return shape;
    const { isFull, full } = body;
    const keys = (layer: number): number =>
      isFull[layer] && full ? (this.#fullKeys ?? full.kvHeads ?? 1) : this.keyHeads;
    return { ...shape, byLayer: listShapes(body, keys) };
  }

  /** @internal Latents, if a layer can compute with them. */
  override pagedShape(): CacheShape {
    const { latent } = this.config;
    const shape = this.cacheShape();
    const layers = this.#stack.layers.map(({ self_attn }) => self_attn);
    const width = latent ? latent.keyRank + latent.rotaryDim : 1;
    const absorbs = layers.every((layer) => layer instanceof LatentAttention && layer.absorbs);
    if (width % 2 !== 0 || !absorbs) return shape;
    return { ...shape, kvHeads: 1, headDim: width / 2, latent: true };
  }

  override get hiddenSize(): number {
    return this.config.embedDim ?? this.config.channels;
  }

  override get placedSeq(): number {
    const { ropeScaling, maxSeq } = this.config;
    const changes = ropeScaling && angleRegime(ropeScaling, maxSeq) !== angleRegime(ropeScaling, 1);
    if (!changes || !('originalMaxSeq' in ropeScaling)) return maxSeq;
    return Math.min(maxSeq, ropeScaling.originalMaxSeq);
  }

  /** @internal */
  override get sharedAnglesSeq(): number {
    const { maxSeq } = this.config;
    return this.rereads(1, maxSeq) ? maxSeq : this.placedSeq;
  }

  /** @internal */
  override rereads(from: number, to: number): boolean {
    return changesAngles(this.config.ropeScaling, from, to);
  }

  /** @internal */
  override releaseTables(): void {
    this.#stack.releaseTables();
  }

  protected override described(): PretrainedDescription {
    const tied = this.config.tied && !(this.lm_head instanceof PackedLinear);
    return describeRotary(this.traits, { ...this.config, tied });
  }

  /** @internal See rotaryBlockActivations(). */
  override blockActivations(): BlockActivations {
    return rotaryBlockActivations(this.traits, this.config);
  }

  /** @internal The table of tokens, without the factor of its family. */
  get tokenTable(): Embedding {
    return this.#stack.embed_tokens;
  }

  override get routerLoss(): number {
    return this.config.routerAuxLossCoef ?? 0;
  }

  /** @internal Number of expert weights that a token does not use. */
  override idleParameters(): number {
    const { moe, channels, layers } = this.config;
    if (!moe) return 0;
    const matrices = this.traits.moe?.activation === 'relu2' ? 2 : 3;
    const width = moe.latentDim ?? channels;
    const idle = (moe.experts - moe.perToken) * matrices * moe.hidden * width;
    return idle * (layers - moe.denseLayers.length);
  }

  /** @internal Bounded logits, and the products of a head with a bias. */
  protected override get finishLogits(): ((products: Tensor) => Tensor) | null {
    const cap = this.config.scales?.logitCap ?? null;
    if (cap !== null) return (products) => tanh(products.mul(1 / cap)).mul(cap);
    return this.traits.biases.head ? (products) => products : null;
  }

  protected override bodyLayers(): PipelineLayer[] {
    if (this.routerLoss > 0) throw noStagesError(this.traits.name, this.routerLoss);
    return this.#stack.pipelineLayers();
  }

  protected override hiddenOf(tokens: Tensor, places: Places): Tensor {
    return this.#stack.call(tokens, places);
  }
}

/** Routing statistics of one pipeline stage cannot reach the loss in another. */
function noStagesError(model: string, got: number): DsError {
  return new DsError({
    code: 'DS_ARGUMENT',
    op: `${model} routerAuxLossCoef`,
    expected: '0 in a pipeline of several stages',
    got: String(got),
    hint: 'Read the model with { routerAuxLossCoef: 0 }, or train without pipeline stages.',
  });
}

/** The family of Hugging Face folders for models of `traits`. */
export function rotaryFamily<Model extends RotaryLM, Config extends RotaryConfig>(
  traits: RotaryTraits,
  build: (config: Config) => Model,
): Family<Model, RotaryOptions> {
  const { name, modelType, textOf, alsoTypes = {} } = traits;
  return {
    modelType,
    textOf,
    alsoTypes: Object.keys(alsoTypes),
    architecture: `${name} supports the published settings of transformers' ${traits.architecture}.`,
    layout: (model) => rotaryLayout(traits, model.config),
    build: (folder, options) => {
      const { maxSeq } = options;
      if (typeof traits.positions === 'object' && maxSeq !== undefined) {
        const expected = 'no value, because the folder has a table of positions';
        throw argumentError(`${name} maxSeq`, expected, formatValue(maxSeq));
      }
      const denseSeq = readDenseSeq(traits, folder.config);
      if (denseSeq !== null && maxSeq !== undefined && maxSeq > denseSeq) {
        const expected = `at most ${denseSeq}, the tokens of sparse attention (${traits.denseUpTo})`;
        const hint = 'Longer sequences need the indexer, which the library lacks.';
        throw argumentError(`${name} maxSeq`, expected, formatValue(maxSeq), hint);
      }
      return build({ ...parseRotaryConfig(traits, folder), ...options } as Config);
    },
  };
}
