// InferenceEngine: whoever asks for a text gets its pieces, while all texts are computed in steps
// that they share.
import { jointly } from '../comm/index.js';
import { DsError } from '../errors.js';
import type { CausalLM } from '../models/index.js';
import { answerPythonNames } from '../runtime/python-names.js';
import { requireNoSurplus } from '../runtime/surplus.js';
import { noGrad, type Tensor } from '../tensor/index.js';
import type { Tokenizer } from '../text/index.js';
import { searched } from './beam-generation.js';
import { type Generation, type GenerationPiece, gathered } from './continuation.js';
import { type EnginePlace, placeAlone } from './ranks/place.js';
import {
  type GenerateRequest,
  type ReadRequest,
  type RequestLimits,
  readRequest,
} from './request.js';
import type { Generator, InferenceStats, Submitted } from './step-loop.js';
import type { StepRunner } from './step-runner.js';

export type { InferenceStats } from './step-loop.js';

/**
 * What an engine is made of; it owns the generator, and the model where it has read that itself.
 */
export interface EngineParts {
  model: CausalLM;
  ownsModel: boolean;
  tokenizer: Tokenizer | null;
  /** The generator's: the engine has it measure. */
  runner: StepRunner;
  generator: Generator;
  requests: RequestLimits;
  /** Default: it shares its model with nobody. */
  place?: EnginePlace;
}

/**
 * A model that continues texts, many at a time: a step takes tokens of all that run, so that a
 * request waits for no other to end. Steps are taken in turns of the event loop, as long as there
 * is something to compute; on the CPU each holds the thread for as long as it takes. Made by
 * initInference(). Source: DeepSpeed's InferenceEngine, and FastGen for what a step takes.
 */
export class InferenceEngine {
  static {
    answerPythonNames(InferenceEngine, { label: 'inference', fields: ['maxTokens'] });
  }

  /** The model, in evaluation mode. */
  readonly module: CausalLM;
  /** Of the model's folder; null for a model that came without. */
  readonly tokenizer: Tokenizer | null;
  /**
   * Most tokens of a prompt and its continuation: max_out_tokens, or what the cache has room for.
   */
  readonly maxTokens: number;
  /** This process among those that share the model out (tensor_parallel); 0 alone. */
  readonly rank: number;
  private readonly runner: StepRunner;
  private readonly generator: Generator;
  private readonly place: EnginePlace;
  private isDestroyed = false;
  /** Ends searches for beams. */
  private readonly ending = new AbortController();

  /** @internal initInference() makes engines. */
  constructor(private readonly parts: EngineParts) {
    const { model, tokenizer, runner, generator, requests, place = placeAlone } = parts;
    this.module = model;
    this.tokenizer = tokenizer;
    this.maxTokens = requests.maxTokens;
    this.runner = runner;
    this.generator = generator;
    this.place = place;
    this.rank = place.rank;
  }

  /**
   * Logits [B, T, V] of tokens [B, T], without a graph and beside the cache; the caller owns them.
   * Ranks that share the model call it alike, while no text is under way. Throws DS_SHAPE,
   * DS_RELEASED, DS_ARGUMENT, DS_COMM.
   */
  call(tokens: Tensor): Tensor {
    this.requireAlive('call');
    this.place.requireForward(this.generator);
    const { runner, module } = this;
    return jointly(runner.together, () => noGrad(() => runner.timed(() => module.call(tokens))));
  }

  /**
   * Resolves with the `n` continuations of a prompt. Rejects with DS_ARGUMENT for an invalid
   * request, DS_LIMIT for one that does not fit, DS_RELEASED after destroy(), the reason of an
   * aborted signal, or the error of a step. Ranks that share the model make the same calls in the
   * same order, or follow() the first rank. All get the tokens that the first rank samples.
   */
  generate(request: GenerateRequest): Promise<Generation[]>;
  async generate(request: GenerateRequest, ...surplus: readonly unknown[]): Promise<Generation[]> {
    requireNoSurplus('generate', surplus, 'Put all options into the request: { prompt, ... }.');
    this.requireAlive('generate');
    const read = readRequest(request, this.parts.requests);
    if (read.beams) return this.search(read);
    return gathered(this.submit(read).pieces, read);
  }

  /** A beam search, which is computed beside the steps. */
  private async search(request: ReadRequest): Promise<Generation[]> {
    this.place.requireAlone('numBeams');
    const { tokenizer, module, ending } = this;
    const found = await searched(module, request, { tokenizer, signal: ending.signal });
    this.generator.count(request.prompt.length, found);
    return found;
  }

  /**
   * generate() of several prompts, which are computed together. Nothing is computed where one of
   * them is refused.
   */
  async generateBatch(requests: readonly GenerateRequest[]): Promise<Generation[][]> {
    const jobs: Submitted[] = [];
    try {
      const read = requests.map((request) => this.read(request));
      for (const request of read) jobs.push(this.submit(request));
      return await Promise.all(
        jobs.map(({ pieces }, i) => gathered(pieces, read[i] as ReadRequest)),
      );
    } catch (error) {
      for (const job of jobs) job.abort();
      throw error;
    }
  }

  /**
   * The continuations of a prompt piece by piece, those of `n` mixed. Leaving the loop ends them
   * and frees their blocks at once; pieces wait for a slow reader, and the others do not. A signal
   * ends the list behind a piece with "abort", so that its reader keeps the text so far. Throws and
   * rejects as generate() does otherwise.
   */
  stream(request: GenerateRequest): AsyncIterableIterator<GenerationPiece>;
  stream(
    request: GenerateRequest,
    ...surplus: readonly unknown[]
  ): AsyncIterableIterator<GenerationPiece> {
    requireNoSurplus('stream', surplus, 'Put all options into the request: { prompt, ... }.');
    return this.submit(this.read(request)).pieces;
  }

  /**
   * Of ranks that share the model, all but the first compute from here on what the first one is
   * asked, and resolve when it is destroyed; on the first it resolves at once, and requests are
   * those of that rank alone. An engine by itself has nobody to follow. Rejects with DS_COMM where
   * a rank is gone, DS_RELEASED.
   */
  async follow(): Promise<void> {
    this.requireAlive('follow');
    await this.place.follow();
  }

  /**
   * The error after which the engine computes nothing more: a rank that shares the model was lost
   * or stalled (DS_COMM), or the GPU fails every call (DS_CUDA). Null while it works. It does not
   * wait.
   */
  get failure(): DsError | null {
    return this.isDestroyed ? null : this.generator.failure;
  }

  /** What it has to do, and what it has done; of ranks that share a model, the first one knows. */
  stats(): InferenceStats {
    return this.generator.stats();
  }

  /** Measures each forward from now on, which then waits for the device. */
  profileModelTime(): void {
    this.runner.times ??= [];
  }

  /**
   * Milliseconds of each forward since the last call. Throws DS_ARGUMENT unless profileModelTime()
   * was called before.
   */
  modelTimes(): number[] {
    const { times } = this.runner;
    if (times) {
      this.runner.times = [];
      return times;
    }
    const expected = 'profileModelTime() before it';
    const got = 'an engine that measures nothing';
    throw new DsError({ code: 'DS_ARGUMENT', op: 'InferenceEngine.modelTimes', expected, got });
  }

  /**
   * Ends all requests ("abort") and frees the cache, and the weights where initInference() has read
   * them. Of ranks that share a model the others wait here for the first. A second call does
   * nothing.
   */
  async destroy(): Promise<void> {
    if (this.isDestroyed) return;
    this.isDestroyed = true;
    this.ending.abort(this.released('generate'));
    try {
      await this.generator.close();
    } finally {
      if (this.parts.ownsModel) {
        for (const parameter of this.module.parameters()) parameter.dispose();
        this.module.releaseTables();
      }
    }
  }

  private submit(request: ReadRequest): Submitted {
    return this.generator.submit(request);
  }

  private requireAlive(call: string): void {
    if (this.isDestroyed) throw this.released(call);
  }

  private released(call: string): DsError {
    return new DsError({
      code: 'DS_RELEASED',
      op: `InferenceEngine.${call}`,
      expected: 'an engine',
      got: 'one that destroy() has ended',
    });
  }

  /** Throws as readRequest() does, and DS_ARGUMENT for beams, whose texts end together. */
  private read(given: GenerateRequest): ReadRequest {
    this.requireAlive('generate');
    const request = readRequest(given, this.parts.requests);
    if (!request.beams) return request;
    throw new DsError({
      code: 'DS_ARGUMENT',
      op: 'InferenceEngine request numBeams',
      expected: '1 in a stream and in a batch: no text of a beam search is certain before its end',
      got: String(given.numBeams),
      hint: 'Call generate() for each such request.',
    });
  }
}
