// InferenceEngine: generates text for many requests with continuous batching.

import { jointly } from '../comm/index.js';
import { DsError } from '../errors.js';
import type { CausalLM } from '../models/index.js';
import { argumentError, valueError } from '../runtime/input-errors.js';
import { definePythonNames } from '../runtime/python-names.js';
import { requireInteger } from '../runtime/require-number.js';
import { requireNoSurplus } from '../runtime/require-type.js';
import { required } from '../runtime/required.js';
import { noGrad, type Tensor } from '../tensor/index.js';
import type { Tokenizer } from '../text/index.js';
import type { Adapters } from './adapters/adapters.js';
import { requireName, WITH_ADAPTERS } from './adapters/settings.js';
import { searchBeams } from './beam-generation.js';
import { type ChatRequest, type ChatResult, chat } from './chat.js';
import { type Generation, type GenerationPiece, gatherPieces } from './continuation.js';
import type { Generator, InferenceStats, Submitted } from './generator.js';
import { Grammars } from './grammar/grammars.js';
import { StartedPieces, separateReasoning } from './piece-queue.js';
import { promptLogprobs } from './prompt-logprobs.js';
import { aloneRole, type EngineRole } from './ranks/role.js';
import {
  type GenerateRequest,
  type ReadRequest,
  type RequestLimits,
  readRequest,
} from './request.js';
import type { TokenLogprob } from './sampling.js';
import type { StepRunner } from './step-runner.js';

export type { InferenceStats } from './generator.js';

/** Parts of an engine. The engine owns the generator, and the model if `ownsModel` is set. */
interface EngineParts {
  model: CausalLM;
  ownsModel: boolean;
  tokenizer: Tokenizer | null;
  /** The generator's runner; the engine reads its forward times. */
  runner: StepRunner;
  generator: Generator;
  requests: RequestLimits;
  /** Adapters in addition to the weights; null or absent: none. */
  adapters?: Adapters | null;
  /** Whether the cache holds less than the longest sequence of the model. Default: false. */
  isCacheBound?: boolean;
  /** The part of this process in a split model. Default: it has the whole model. */
  role?: EngineRole;
}

/**
 * Generates text for many requests at a time. Each step computes tokens of all running sequences
 * (continuous batching), so that no request waits for the end of another request. Steps run in
 * turns of the event loop. On the CPU a step blocks the thread. initInference() creates engines.
 * Sources: DeepSpeed's InferenceEngine and FastGen.
 */
export class InferenceEngine {
  static {
    definePythonNames(InferenceEngine, { label: 'inference', fields: ['maxTokens'] });
  }

  /** The model, in evaluation mode. */
  readonly module: CausalLM;
  /** The tokenizer of the model folder or of the options; null without one. */
  readonly tokenizer: Tokenizer | null;
  /**
   * Maximum number of tokens of a prompt and its continuation: max_out_tokens, by default the
   * model's maximum. It is less if the cache is smaller.
   */
  readonly maxTokens: number;
  /** @internal Whether the size of the cache decides `maxTokens`. */
  readonly isCacheBound: boolean;
  /** Rank within the group that shares the model (tensor_parallel); 0 without sharing. */
  readonly rank: number;
  private readonly runner: StepRunner;
  private readonly generator: Generator;
  private readonly role: EngineRole;
  private readonly grammars: Grammars;
  private isDestroyed = false;
  /** Aborts beam searches. */
  private readonly ending = new AbortController();

  /** @internal initInference() creates engines. */
  constructor(private readonly parts: EngineParts) {
    const { model, tokenizer, runner, generator, requests, role = aloneRole } = parts;
    this.module = model;
    this.tokenizer = tokenizer;
    this.maxTokens = requests.maxTokens;
    this.isCacheBound = parts.isCacheBound ?? false;
    this.runner = runner;
    this.generator = generator;
    this.role = role;
    this.rank = role.rank;
    this.grammars = new Grammars(tokenizer, requests.vocabSize);
  }

  /**
   * Returns logits [B, T, V] for tokens [B, T], without autograd and without the cache. The caller
   * owns them. Ranks that share the model must all make the same call while no generation runs.
   * Throws DS_SHAPE for too many tokens, DS_ARGUMENT during a generation of several ranks,
   * DS_RELEASED after destroy(), DS_COMM if another rank fails.
   */
  call(tokens: Tensor): Tensor {
    this.requireAlive('call');
    this.role.requireForward(this.generator);
    const { runner, module } = this;
    return jointly(runner.together, () =>
      noGrad(() => runner.timeForward(() => module.call(tokens))),
    );
  }

  /**
   * Returns the logprob of each token of a prompt with the `top` likeliest alternatives; null for
   * the first token. `adapter` names a loaded adapter. One forward without the cache. Throws
   * DS_ARGUMENT for invalid tokens, an unknown adapter and with tensor_parallel, DS_LIMIT for a
   * prompt that is too long.
   */
  promptLogprobs(
    prompt: ArrayLike<number>,
    top = 0,
    adapter?: string | null,
  ): (TokenLogprob | null)[] {
    this.requireAlive('promptLogprobs');
    this.role.requireAlone('promptLogprobs');
    const request = { prompt, maxNewTokens: 1, ...(adapter && { adapter }) };
    const { prompt: tokens } = readRequest(request, this.parts.requests);
    const max = requireInteger('promptLogprobs top', top, 0);
    const score = () => promptLogprobs(this.module, tokens, max);
    const { adapters } = this.parts;
    if (!adapter || !adapters || tokens.length < 2) return score();
    return adapters.with(adapter, tokens.length - 1, score);
  }

  /** Names of the loaded adapters, in the order of loading. */
  get adapters(): readonly string[] {
    return this.parts.adapters?.names ?? [];
  }

  /**
   * Loads a further adapter: a folder in PEFT's format, or a name on the hub. Requests
   * select it by `name`. Needs the option maxAdapters of initInference(). Rejects with DS_ARGUMENT
   * for a name in use, a rank above maxAdapterRank and with tensor_parallel. Rejects with DS_LIMIT
   * if maxAdapters are loaded, and DS_CHECKPOINT for an adapter of another model.
   */
  async loadAdapter(name: string, source: string): Promise<void> {
    const op = 'InferenceEngine.loadAdapter';
    await this.openAdapters('loadAdapter').load(op, requireName(op, name), source);
  }

  /**
   * Unloads an adapter. Requests in progress keep it; new requests do not find it. Throws
   * DS_ARGUMENT for an unknown name and with tensor_parallel.
   */
  unloadAdapter(name: string): void {
    const op = 'InferenceEngine.unloadAdapter';
    this.openAdapters('unloadAdapter').unload(op, requireName(op, name));
  }

  private openAdapters(call: string): Adapters {
    this.requireAlive(call);
    this.role.requireAlone(call);
    const { adapters } = this.parts;
    if (adapters) return adapters;
    const hint = 'Set maxAdapters in the options of initInference().';
    throw argumentError(
      `InferenceEngine.${call}`,
      WITH_ADAPTERS,
      'an engine without adapters',
      hint,
    );
  }

  /**
   * Resolves with the `n` continuations of a prompt. Rejects with DS_ARGUMENT for an invalid
   * request, DS_LIMIT for a request that is too long and DS_RELEASED after destroy(). It also
   * rejects with the reason of an aborted signal or the error of a step. Ranks that share the model
   * make the same calls in the same order, or call follow(). All ranks get the tokens that rank 0
   * samples.
   */
  generate(request: GenerateRequest): Promise<Generation[]>;
  async generate(request: GenerateRequest, ...surplus: readonly unknown[]): Promise<Generation[]> {
    requireNoSurplus('generate', surplus, 'Put all options into the request: { prompt, ... }.');
    this.requireAlive('generate');
    const read = readRequest(request, this.parts.requests);
    if (read.beams) return this.search(read);
    const ready = read.format ? await this.withGrammar(read) : read;
    return gatherPieces(separateReasoning(this.submit(ready).pieces, ready), ready);
  }

  /** Runs a beam search outside the batched steps. */
  private async search(request: ReadRequest): Promise<Generation[]> {
    this.role.requireAlone('numBeams');
    const { tokenizer, module, ending } = this;
    const results = await searchBeams(module, request, { tokenizer, signal: ending.signal });
    this.generator.count(request.prompt.length, results);
    return results;
  }

  /**
   * Runs generate() for several prompts in shared steps. If one request is invalid, it rejects
   * before any step.
   */
  generateBatch(requests: readonly GenerateRequest[]): Promise<Generation[][]>;
  async generateBatch(
    requests: readonly GenerateRequest[],
    ...surplus: readonly unknown[]
  ): Promise<Generation[][]> {
    requireNoSurplus('generateBatch', surplus, 'Put all options into each request.');
    if (!Array.isArray(requests)) {
      throw valueError('InferenceEngine.generateBatch', 'a list of requests', requests);
    }
    const jobs: Submitted[] = [];
    try {
      const read = requests.map((request, i) => this.readOneOf(request, i));
      for (const [i, request] of read.entries()) {
        if (request.format) read[i] = await this.withGrammar(request);
      }
      for (const request of read) jobs.push(this.submit(request));
      const gather = ({ pieces }: Submitted, request: ReadRequest): Promise<Generation[]> =>
        gatherPieces(separateReasoning(pieces, request), request);
      return await Promise.all(jobs.map((job, i) => gather(job, required(read[i]))));
    } catch (error) {
      for (const job of jobs) job.abort();
      throw error;
    }
  }

  /**
   * Streams the continuations of a prompt in pieces; pieces of the `n` continuations are
   * interleaved. Leaving the loop aborts them and frees their blocks. Pieces queue for a slow
   * reader, and other requests do not wait. An aborted signal ends the stream with "abort" pieces,
   * so the reader keeps the text so far. Other errors are as in generate(). A request with a format
   * starts with the first call of next().
   */
  stream(request: GenerateRequest): AsyncIterableIterator<GenerationPiece>;
  stream(
    request: GenerateRequest,
    ...surplus: readonly unknown[]
  ): AsyncIterableIterator<GenerationPiece> {
    requireNoSurplus('stream', surplus, 'Put all options into the request: { prompt, ... }.');
    const read = this.read(request);
    return read.format ? this.streamPieces(read) : this.submit(read).pieces;
  }

  /**
   * Answers a conversation. The model may call `tools`, functions of the program: the engine runs
   * each call and gives the result back, until an answer has no calls. Rejects as generate() does;
   * errors of functions go to the model.
   */
  chat(request: ChatRequest): Promise<ChatResult>;
  async chat(request: ChatRequest, ...surplus: readonly unknown[]): Promise<ChatResult> {
    requireNoSurplus('chat', surplus, 'Put all options into the request: { messages, ... }.');
    this.requireAlive('chat');
    return chat(this, request);
  }

  private streamPieces(request: ReadRequest): AsyncIterableIterator<GenerationPiece> {
    return new StartedPieces(async () => {
      const ready = await this.withGrammar(request);
      return separateReasoning(this.submit(ready).pieces, ready);
    });
  }

  /** Adds the grammar of the request's format. Only rank 0 samples. */
  private async withGrammar(request: ReadRequest): Promise<ReadRequest> {
    if (!request.format || this.rank > 0) return request;
    const grammar = await this.grammars.compile(request.format, request.visibleTokens);
    this.requireAlive('generate');
    return { ...request, grammar };
  }

  /**
   * Serves the requests of rank 0 on the other ranks that share the model. Ranks above 0 resolve
   * when rank 0 destroys its engine. On rank 0 it resolves at once, and only rank 0 may send
   * requests from then on. Without sharing it does nothing. Rejects with DS_COMM if a rank is lost
   * and with DS_RELEASED.
   */
  async follow(): Promise<void> {
    this.requireAlive('follow');
    await this.role.follow();
  }

  /**
   * The error that stopped the engine; null while it runs. DS_COMM: a rank that shares the model
   * was lost or stalled. DS_CUDA: the GPU fails every call. This getter does not wait.
   */
  get failure(): DsError | null {
    return this.isDestroyed ? null : this.generator.failure;
  }

  /** Returns current counters. With sharing, only rank 0 has them. */
  stats(): InferenceStats {
    return this.generator.stats();
  }

  /** Starts to measure each forward. Measured forwards wait for the device. */
  profileModelTime(): void {
    this.runner.times ??= [];
  }

  /**
   * Returns the milliseconds of each forward since the last call. Throws DS_ARGUMENT unless
   * profileModelTime() was called before.
   */
  modelTimes(): number[] {
    const { times } = this.runner;
    if (times) {
      this.runner.times = [];
      return times;
    }
    const expected = 'a call of profileModelTime() first';
    const got = 'no measured forwards';
    throw argumentError('InferenceEngine.modelTimes', expected, got);
  }

  /**
   * Frees the key-value cache, including cached prefixes. The next request or wake() allocates it
   * again. Throws DS_ARGUMENT while a request is in progress, and with tensor_parallel.
   */
  sleep(): void {
    this.requireAlive('sleep');
    if (this.generator.isBusy) {
      throw argumentError('InferenceEngine.sleep', 'no request in progress', 'at least one');
    }
    this.generator.sleep();
  }

  /**
   * Allocates the cache after sleep(); otherwise does nothing. Throws DS_OUT_OF_MEMORY if the
   * device has too little memory.
   */
  wake(): void {
    this.requireAlive('wake');
    this.generator.wake();
  }

  /**
   * Ends all requests with "abort" and frees the cache. Frees the weights if initInference() loaded
   * them. With sharing, the other ranks wait for rank 0. A second call does nothing.
   */
  async destroy(): Promise<void> {
    if (this.isDestroyed) return;
    this.isDestroyed = true;
    this.ending.abort(this.releasedError('generate'));
    try {
      await this.generator.close();
    } finally {
      this.parts.adapters?.dispose();
      if (this.parts.ownsModel) {
        for (const parameter of this.module.parameters()) parameter.dispose();
        this.module.releaseTables();
      }
    }
  }

  private submit(request: ReadRequest): Submitted {
    this.generator.wake();
    return this.generator.submit(request);
  }

  private requireAlive(call: string): void {
    if (this.isDestroyed) throw this.releasedError(call);
  }

  private releasedError(call: string): DsError {
    return new DsError({
      code: 'DS_RELEASED',
      op: `InferenceEngine.${call}`,
      expected: 'a live engine',
      got: 'a destroyed engine',
    });
  }

  /** Reads request `i` of a batch. Errors name `requests[i]`. */
  private readOneOf(given: GenerateRequest, i: number): ReadRequest {
    try {
      return this.read(given);
    } catch (error) {
      if (!(error instanceof DsError)) throw error;
      const { code, op, expected, got, hint } = error;
      const name = op.replace(/^InferenceEngine request\b/, `InferenceEngine requests[${i}]`);
      throw new DsError({ code, op: name, expected, got, hint, cause: error });
    }
  }

  /** Throws the errors of readRequest(), and DS_ARGUMENT for beam searches, which cannot stream. */
  private read(given: GenerateRequest): ReadRequest {
    this.requireAlive('generate');
    const request = readRequest(given, this.parts.requests);
    if (!request.beams) return request;
    throw argumentError(
      'InferenceEngine request numBeams',
      '1 in stream() and generateBatch(): beams are final only at the end of the search',
      String(given.numBeams),
      'Call generate() for each such request.',
    );
  }
}
