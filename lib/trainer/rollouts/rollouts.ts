// rolloutsOf(): a training engine generates text with its own weights, between updates.

import { OFFLOAD_STATES, type OffloadState } from '../../engine/calls.js';
import { Engine } from '../../engine/engine.js';
import { holdWeights } from '../../engine/parameters/gathered-parameters.js';
import { requireOnDevice } from '../../engine/parameters/offloaded-states.js';
import type { GenerateRequest, Generation, InferenceEngine } from '../../inference/index.js';
import { initRollouts } from '../../inference/init-inference.js';
import { CausalLM } from '../../models/causal-lm.js';
import { groupOf } from '../../parallel/index.js';
import { argumentError, valueError } from '../../runtime/input-errors.js';
import { namesOf, readOptions } from '../../runtime/options.js';
import { requireInteger } from '../../runtime/require-number.js';
import { requireNoSurplus, requireOneOf } from '../../runtime/require-type.js';
import type { Tokenizer } from '../../text/index.js';
import { requireWholeLayers } from './exact.js';

/** Options of rolloutsOf(). */
export interface RolloutOptions {
  /** Tokenizer for text prompts and completions. Default: no tokenizer; prompts are tokens. */
  tokenizer?: Tokenizer | null;
  /**
   * Maximum number of tokens of a prompt and its completion. Default: 1024, or the model's maximum
   * if it is smaller.
   */
  maxTokens?: number;
  /**
   * Maximum number of completions that are sampled at a time. Default: 128 on a GPU, 32 on the CPU.
   */
  maxSequences?: number;
  /** Whether the key-value cache is freed after each call. Default: true. */
  releaseCache?: boolean;
  /** States that are in host memory during the generation; see offloadStates(). Default: none. */
  offload?: readonly Exclude<OffloadState, 'lp_params'>[];
  /**
   * Whether log-probabilities have the bits of a forward with `loss: { tokens: { batchInvariant:
   * true } }`. It is slower. Default: false.
   */
  batchInvariant?: boolean;
  /**
   * Whether decode steps are recorded as GPU graphs. Ignored at ZeRO stage 3, with tensor
   * parallelism, with `batchInvariant`, and if the cache is not freed. Default: true on a GPU.
   */
  enableCudaGraph?: boolean;
}

/**
 * Returns a generator of text that uses the weights of `engine` without copying them. Adapters are
 * applied next to the weights. Throws DS_ARGUMENT if the engine's model is not a CausalLM.
 */
export function rolloutsOf(engine: Engine, given?: RolloutOptions): Rollouts;
export function rolloutsOf(
  engine: Engine,
  given: RolloutOptions = {},
  ...surplus: readonly unknown[]
): Rollouts {
  requireNoSurplus('rolloutsOf', surplus);
  const read = readOptions('rolloutsOf', given, namesOf.RolloutOptions);
  const { tokenizer = null, maxTokens, maxSequences = null, offload = [] } = read;
  const { releaseCache = true, batchInvariant = false, enableCudaGraph = true } = read;
  if (maxSequences !== null) requireInteger('rolloutsOf maxSequences', maxSequences, 1);
  if (!(engine instanceof Engine)) {
    throw valueError('rolloutsOf engine', 'an engine of initialize()', engine);
  }
  const { module } = engine;
  if (!(module instanceof CausalLM)) {
    throw argumentError(
      'rolloutsOf',
      'an engine of a CausalLM',
      `one of a ${module.constructor.name}`,
    );
  }
  const max = maxTokens ?? Math.min(1024, module.sharedAnglesSeq);
  requireInteger('rolloutsOf maxTokens', max, 2);
  if (max > module.sharedAnglesSeq) {
    throw valueError(
      'rolloutsOf maxTokens',
      `at most ${module.sharedAnglesSeq}, of the model`,
      max,
    );
  }
  requireMovable(engine, offload);
  if (batchInvariant) requireWholeLayers('rolloutsOf batchInvariant', module);
  // A recorded step contains addresses of weights. sleep() drops recorded steps after each phase.
  const records = enableCudaGraph && releaseCache && !batchInvariant && staysInPlace(engine);
  const how = { tokenizer, maxSequences, releaseCache, offload, batchInvariant, records };
  return new Rollouts(engine, module, how, max);
}

/** Returns whether decode steps need no other rank, and the weights keep their addresses. */
function staysInPlace({ config, module }: Engine): boolean {
  return config.zero_optimization.stage < 3 && groupOf(module) === null;
}

/**
 * Throws DS_ARGUMENT if `offload` names the weights, because generation reads them, or an unknown
 * state. Throws DS_CONFIG as offloadStates() does.
 */
function requireMovable(engine: Engine, offload: readonly OffloadState[]): void {
  const op = 'rolloutsOf offload';
  if (!Array.isArray(offload)) throw valueError(op, 'a list of states', offload);
  const movable = OFFLOAD_STATES.filter((name) => name !== 'lp_params');
  for (const name of offload) requireOneOf(op, name, movable);
  if (offload.length > 0) requireOnDevice(op, engine);
}

/**
 * Generates text with the weights of a training engine, in phases. A phase waits for the last
 * update, gathers sharded weights once, and samples in evaluation mode. At its end it frees the
 * key-value cache, unless `releaseCache` is false. All ranks of the engine must call generate(),
 * each with its own requests.
 */
export class Rollouts {
  private sampler: InferenceEngine | null = null;
  private isBusy = false;
  private isDestroyed = false;

  /** @internal Use rolloutsOf(). */
  constructor(
    private readonly engine: Engine,
    private readonly model: CausalLM,
    private readonly how: {
      tokenizer: Tokenizer | null;
      maxSequences: number | null;
      releaseCache: boolean;
      offload: readonly OffloadState[];
      batchInvariant: boolean;
      records: boolean;
    },
    /** Maximum number of tokens of a prompt and its completion. */
    readonly maxTokens: number,
  ) {}

  /**
   * Resolves with the completions of each request. Requested log-probabilities are computed at the
   * sampling temperature. Rejects with DS_ARGUMENT if another call runs, and as
   * InferenceEngine.generateBatch() does.
   */
  generate(requests: readonly GenerateRequest[]): Promise<Generation[][]> {
    return this.phase((generate) => generate(requests));
  }

  /**
   * @internal Runs `body` in one phase. `body` may call its argument several times concurrently.
   */
  async phase<Result>(
    body: (
      generate: (requests: readonly GenerateRequest[]) => Promise<Generation[][]>,
    ) => Promise<Result>,
  ): Promise<Result> {
    const { engine, model } = this;
    if (this.isDestroyed)
      throw argumentError('Rollouts.generate', 'a call before destroy()', 'a call after destroy()');
    if (this.isBusy)
      throw argumentError(
        'Rollouts.generate',
        'one call at a time',
        'a second call before the first one has ended',
      );
    this.isBusy = true;
    const { training } = model;
    const { offload, releaseCache } = this.how;
    const ends: (() => void)[] = [() => (this.isBusy = false)];
    try {
      engine.synchronize();
      if (offload.length > 0) {
        engine.offloadStates({ include: offload });
        ends.unshift(() => engine.reloadStates());
      }
      ends.unshift(holdWeights(engine));
      engine.eval();
      if (training) ends.push(() => engine.train());
      this.sampler ??= await this.open();
      const { sampler } = this;
      return await body((requests) => sampler.generateBatch(requests));
    } finally {
      if (releaseCache) this.sampler?.sleep();
      for (const end of ends) end();
    }
  }

  /** Frees the sampler. The engine keeps its weights. */
  async destroy(): Promise<void> {
    this.isDestroyed = true;
    await this.sampler?.destroy();
    this.sampler = null;
  }

  private open(): Promise<InferenceEngine> {
    const { tokenizer, maxSequences, batchInvariant, records } = this.how;
    const config = {
      max_out_tokens: this.maxTokens,
      max_ragged_sequence_count: maxSequences,
      batch_invariant: batchInvariant,
      enable_cuda_graph: records ? ('auto' as const) : false,
    };
    const weights = { isWhole: true, keepsAddresses: records };
    return initRollouts(this.model, config, tokenizer, weights);
  }
}
