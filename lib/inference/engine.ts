// InferenceEngine: whoever asks for a text gets its pieces, while all texts are computed in steps
// that they share.
import { turn } from '../data/event-loop.js';
import { DsError } from '../errors.js';
import type { CausalLM } from '../models/index.js';
import { noGrad, type Tensor } from '../tensor/index.js';
import type { Tokenizer } from '../text/index.js';
import { searched } from './beam-generation.js';
import { Continuation, type Generation, type GenerationPiece, gathered } from './continuation.js';
import { PieceQueue } from './piece-queue.js';
import {
  type GenerateRequest,
  type ReadRequest,
  type RequestLimits,
  readRequest,
} from './request.js';
import { type SampledToken, Sampler, samplingError } from './sampling.js';
import { type ScheduleCounts, Scheduler, type SchedulerLimits, type Slice } from './scheduler.js';
import type { Sequence } from './sequence.js';
import type { StepRunner } from './step-runner.js';

/** What an engine is made of; it owns the runner, and the model where it has read that itself. */
export interface EngineParts {
  model: CausalLM;
  ownsModel: boolean;
  tokenizer: Tokenizer | null;
  runner: StepRunner;
  limits: SchedulerLimits;
  requests: RequestLimits;
}

/** Counters since the engine was made. */
export interface InferenceStats extends ScheduleCounts {
  /** Tokens of prompts that were taken on. */
  promptTokens: number;
  /** Tokens that were sampled. */
  generatedTokens: number;
  /** Continuations by how they ended. */
  finished: { stop: number; length: number; abort: number };
}

/** One request under way. */
interface Job {
  readonly request: ReadRequest;
  readonly pieces: PieceQueue<GenerationPiece>;
  readonly continuations: Continuation[];
  /** Those that wait for the first one to have computed the prompt. */
  followers: Continuation[];
  /** Whether a token of it has been computed. */
  hasStarted: boolean;
  /** Listens to the request's signal no more. */
  unwatch: () => void;
}

/**
 * A model that continues texts, many at a time: a step takes tokens of all that run, so that a
 * request waits for no other to end. Steps are taken in turns of the event loop, as long as there
 * is something to compute; on the CPU each holds the thread for as long as it takes. Made by
 * initInference(). Source: DeepSpeed's InferenceEngine, and FastGen for what a step takes.
 */
export class InferenceEngine {
  /** The model, in evaluation mode. */
  readonly module: CausalLM;
  /** Of the model's folder; null for a model that came without. */
  readonly tokenizer: Tokenizer | null;
  /** Most tokens of a prompt and its continuation. */
  readonly maxTokens: number;
  private readonly runner: StepRunner;
  private readonly scheduler: Scheduler;
  private readonly sampler: Sampler;
  private readonly freeSlots: number[];
  private readonly jobs = new Map<Sequence, Job>();
  private readonly finished = { stop: 0, length: 0, abort: 0 };
  private promptTokens = 0;
  private generatedTokens = 0;
  private loop: Promise<void> | null = null;
  private isDestroyed = false;
  /** Ends searches for beams. */
  private readonly ending = new AbortController();

  /** @internal initInference() makes engines. */
  constructor(private readonly parts: EngineParts) {
    const { model, tokenizer, runner, limits, requests } = parts;
    this.module = model;
    this.tokenizer = tokenizer;
    this.maxTokens = requests.maxTokens;
    this.runner = runner;
    this.scheduler = new Scheduler(limits);
    this.sampler = new Sampler(model.vocabSize, model.cacheShape().device, limits.sequences);
    this.freeSlots = Array.from({ length: limits.sequences }, (_, i) => i);
  }

  /**
   * Logits [B, T, V] of tokens [B, T], without a graph and beside the cache; the caller owns them.
   * Throws DS_SHAPE, DS_RELEASED.
   */
  call(tokens: Tensor): Tensor {
    this.requireAlive('call');
    return noGrad(() => this.runner.timed(() => this.module.call(tokens)));
  }

  /**
   * The `n` continuations of a prompt, when all have ended. Rejects with DS_ARGUMENT for a request
   * that cannot be, DS_LIMIT for one that does not fit, DS_RELEASED once the engine is destroyed,
   * and with what a step has thrown.
   */
  async generate(request: GenerateRequest): Promise<Generation[]> {
    this.requireAlive('generate');
    const read = readRequest(request, this.parts.requests);
    if (read.beams) return this.search(read);
    const job = this.submit(read);
    return gathered(job.pieces, job.request);
  }

  /** A beam search, which is computed beside the steps. */
  private async search(request: ReadRequest): Promise<Generation[]> {
    const { tokenizer, module, ending } = this;
    const found = await searched(module, request, { tokenizer, signal: ending.signal });
    this.promptTokens += request.prompt.length;
    for (const { tokens, finishReason } of found) {
      this.generatedTokens += tokens.length;
      this.finished[finishReason]++;
    }
    return found;
  }

  /**
   * generate() of several prompts, which are computed together. Nothing is computed where one of
   * them is refused.
   */
  async generateBatch(requests: readonly GenerateRequest[]): Promise<Generation[][]> {
    const jobs: Job[] = [];
    try {
      for (const request of requests) jobs.push(this.submit(this.read(request)));
      return await Promise.all(jobs.map((job) => gathered(job.pieces, job.request)));
    } catch (error) {
      for (const job of jobs) this.abort(job);
      throw error;
    }
  }

  /**
   * The continuations of a prompt piece by piece, those of `n` mixed. Leaving the loop ends them
   * and frees their blocks at once; pieces wait for a slow reader, and the others do not. Throws
   * and rejects as generate() does.
   */
  stream(request: GenerateRequest): AsyncIterableIterator<GenerationPiece> {
    return this.submit(this.read(request)).pieces;
  }

  /** What it has to do, and what it has done. */
  stats(): InferenceStats {
    const { promptTokens, generatedTokens, finished } = this;
    const counts = this.scheduler.counts();
    return { ...counts, promptTokens, generatedTokens, finished: { ...finished } };
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
   * them. A second call does nothing.
   */
  async destroy(): Promise<void> {
    if (this.isDestroyed) return;
    this.isDestroyed = true;
    this.ending.abort(this.released('generate'));
    for (const job of new Set(this.jobs.values())) this.abort(job);
    await this.loop;
    this.sampler.dispose();
    this.runner.dispose();
    if (!this.parts.ownsModel) return;
    for (const parameter of this.module.parameters()) parameter.dispose();
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

  private submit(request: ReadRequest): Job {
    const continuations = Array.from(
      { length: request.n },
      (_, index) => new Continuation(request, index, this.parts.requests),
    );
    const job: Job = {
      request,
      continuations,
      pieces: new PieceQueue<GenerationPiece>(() => this.abort(job)),
      followers: continuations.slice(1),
      hasStarted: false,
      unwatch: () => {},
    };
    this.start(job, continuations[0] as Continuation);
    this.promptTokens += request.prompt.length;
    this.watch(job);
    this.loop ??= this.run();
    return job;
  }

  private start(job: Job, { sequence }: Continuation): void {
    this.scheduler.submit(sequence);
    this.jobs.set(sequence, job);
  }

  private watch(job: Job): void {
    const { signal } = job.request;
    if (!signal) return;
    const onAbort = (): void => this.abort(job);
    if (signal.aborted) onAbort();
    signal.addEventListener('abort', onAbort, { once: true });
    job.unwatch = () => signal.removeEventListener('abort', onAbort);
  }

  /** Takes steps until nothing is left; requests of one turn begin together. */
  private async run(): Promise<void> {
    for (;;) {
      await turn();
      if (this.scheduler.isIdle) break;
      this.step();
    }
    this.loop = null;
  }

  private step(): void {
    let slices: readonly Slice[] = [];
    try {
      slices = this.started(this.scheduler.plan());
      if (slices.length === 0) return;
      const next = this.runner.run(slices, (scores, sequences) => this.choose(scores, sequences));
      this.scheduler.commit(slices);
      for (const { sequence, sampled } of next) this.accept(sequence, sampled);
    } catch (error) {
      const planned = slices.map(({ sequence }) => this.jobs.get(sequence));
      const failed = new Set(slices.length > 0 ? planned : this.jobs.values());
      for (const job of failed) if (job) this.fail(job, error);
    }
  }

  /**
   * Tells those who wait to know that their prompt's turn has come; without those that fail then.
   */
  private started(slices: readonly Slice[]): readonly Slice[] {
    for (const { sequence } of slices) {
      const job = this.jobs.get(sequence);
      if (!job || job.hasStarted) continue;
      job.hasStarted = true;
      try {
        job.request.onStart?.();
      } catch (error) {
        this.fail(job, error);
      }
    }
    return slices.filter(({ sequence }) => this.jobs.has(sequence));
  }

  private choose(scores: Tensor, sequences: readonly Sequence[]): SampledToken[] {
    const slots = this.slotsOf(sequences);
    return this.sampler.read(this.sampler.sample(scores, slots), slots);
  }

  /** The sampler's places of sequences; a sequence keeps its own while it waits for blocks. */
  private slotsOf(sequences: readonly Sequence[]): number[] {
    return sequences.map((sequence) => {
      const continuation = this.continuationOf(sequence) as Continuation;
      if (continuation.slot === null) {
        const slot = this.freeSlots.pop() as number;
        const ends = [...continuation.ends];
        this.sampler.enter(slot, sequence.tokens, continuation.sampling, { ends });
        continuation.slot = slot;
      }
      return continuation.slot;
    });
  }

  private continuationOf(sequence: Sequence): Continuation | undefined {
    const { continuations } = this.jobs.get(sequence) ?? {};
    return continuations?.find((one) => one.sequence === sequence);
  }

  private accept(sequence: Sequence, sampled: SampledToken): void {
    const job = this.jobs.get(sequence);
    const continuation = this.continuationOf(sequence);
    if (!job || !continuation) return;
    const error = samplingError('InferenceEngine', sampled.token);
    if (error) {
      this.fail(job, error);
      return;
    }
    const { followers } = job;
    job.followers = [];
    for (const follower of followers) this.start(job, follower);
    this.generatedTokens++;
    const piece = continuation.accept(sampled);
    if (continuation.isDone) this.leave(continuation);
    job.pieces.push(piece);
    if (job.continuations.every(({ isDone }) => isDone)) this.end(job);
  }

  /** Its blocks and its slot are free. */
  private leave(continuation: Continuation): void {
    const { sequence, slot, finishReason } = continuation;
    this.scheduler.remove(sequence);
    this.jobs.delete(sequence);
    if (slot !== null) {
      this.sampler.leave(slot);
      this.freeSlots.push(slot);
      continuation.slot = null;
    }
    if (finishReason) this.finished[finishReason]++;
  }

  private abort(job: Job): void {
    for (const continuation of job.continuations) {
      if (continuation.isDone) continue;
      const piece = continuation.abort();
      this.leave(continuation);
      job.pieces.push(piece);
    }
    this.end(job);
  }

  private fail(job: Job, error: unknown): void {
    job.pieces.fail(error);
    this.abort(job);
  }

  private end(job: Job): void {
    job.unwatch();
    job.pieces.end();
  }
}
