// The generation loop of an engine: schedules steps, samples tokens and reports pieces.

import { DsError } from '../errors.js';
import type { CausalLM } from '../models/index.js';
import { waitForEventLoop } from '../runtime/event-loop.js';
import type { Matcher } from '../runtime/grammar.js';
import { required } from '../runtime/required.js';
import { whenAborted } from '../runtime/when-aborted.js';
import type { AdapterUse } from './adapters/adapters.js';
import { Continuation, type Generation, type GenerationPiece } from './continuation.js';
import type { Generator, InferenceStats, Submitted } from './generator.js';
import type { PieceQueue } from './piece-queue.js';
import type { ReadRequest } from './request.js';
import { type SampledToken, Sampler, samplingError } from './sampling.js';
import { Scheduler, type Slice } from './scheduler.js';
import type { Sequence } from './sequence.js';
import { SequenceSampler } from './sequence-sampler.js';
import { Speculator } from './speculation/speculator.js';
import { noListener, type StepListener, type StepLoopParts } from './step-loop-parts.js';
import type { ForwardedStep, NextTokens, StepInFlight, StepRunner } from './step-runner.js';

/** A sequence of a request in progress. */
interface RunningSequence {
  readonly job: RunningRequest;
  readonly continuation: Continuation;
}

/** A request in progress. */
interface RunningRequest {
  readonly request: ReadRequest;
  readonly pieces: PieceQueue<GenerationPiece>;
  readonly continuations: Continuation[];
  /** Null: the request uses no adapter. */
  readonly adapter: AdapterUse | null;
  /** Continuations that wait until the first one has computed the prompt. */
  followers: Continuation[];
  /** True after the first step of the request. */
  hasStarted: boolean;
  /** Removes the listener of the request's signal. */
  unwatch: () => void;
}

/** Runs steps in turns of the event loop while work is left. Owns the runner. */
export class StepLoop implements Generator {
  private readonly runner: StepRunner;
  private readonly scheduler: Scheduler;
  private readonly sampler: SequenceSampler;
  private readonly speculator: Speculator | null;
  private readonly listener: StepListener;
  private readonly sequences = new Map<Sequence, RunningSequence>();
  private readonly finished = { stop: 0, length: 0, abort: 0 };
  private promptTokens = 0;
  private generatedTokens = 0;
  private steps = 0;
  private hostMs = 0;
  /** Version of the weights when the engine was last idle. */
  private weights = '';
  private loop: Promise<void> | null = null;
  private deviceFailure: DsError | null = null;

  constructor(private readonly parts: StepLoopParts) {
    const { model, runner, limits, listener = noListener, speculation = null } = parts;
    this.runner = runner;
    this.listener = listener;
    const { hostBlocks = 0 } = limits;
    const host = hostBlocks > 0 ? runner.hostBlocks(hostBlocks) : null;
    this.scheduler = new Scheduler(limits, host);
    const { device } = model.cacheShape();
    const { vocabSize } = model;
    const lanes = 1 + (speculation?.max ?? 0);
    const sampler = new Sampler(vocabSize, device, limits.sequences, parts.logprobs, lanes);
    const continuationOf = (sequence: Sequence): Continuation | undefined =>
      this.sequences.get(sequence)?.continuation;
    this.sampler = new SequenceSampler(sampler, continuationOf);
    this.speculator = speculation && new Speculator(speculation, continuationOf);
  }

  get isBusy(): boolean {
    return !this.scheduler.isIdle;
  }

  get failure(): DsError | null {
    return this.deviceFailure;
  }

  stats(): InferenceStats {
    const { promptTokens, generatedTokens, finished, steps, hostMs } = this;
    const tokens = { promptTokens, generatedTokens };
    const { proposedTokens = 0, acceptedTokens = 0 } = this.speculator?.counts() ?? {};
    const verified = { proposedTokens, acceptedTokens };
    const counts = { ...this.scheduler.counts(), ...tokens, ...verified };
    return { ...counts, finished: { ...finished }, steps, hostMs };
  }

  count(promptTokens: number, made: readonly Generation[]): void {
    this.promptTokens += promptTokens;
    for (const { tokens, finishReason } of made) {
      this.generatedTokens += tokens.length;
      this.finished[finishReason]++;
    }
  }

  sleep(): void {
    this.runner.sleep();
    this.parts.draft?.sleep();
    this.scheduler.forget();
  }

  wake(): void {
    this.runner.wake();
    this.parts.draft?.wake();
  }

  async close(): Promise<void> {
    for (const job of distinctJobs(this.sequences.values())) this.abort(job);
    await this.loop;
    this.sampler.dispose();
    this.runner.dispose();
    this.parts.draft?.dispose();
  }

  submit(request: ReadRequest): Submitted {
    const job = this.startRequest(request);
    return { pieces: job.pieces, abort: () => this.abort(job) };
  }

  private startRequest(request: ReadRequest): RunningRequest {
    if (!this.isBusy) this.weights = weightsVersion(this.parts.model);
    // Changed weights invalidate the prefix cache: their version is part of the salt.
    const { n, cacheSalt, adapter: name } = request;
    const op = 'InferenceEngine request adapter';
    const adapter = name === null ? null : required(this.parts.adapters).use(op, name, n);
    // Each load of an adapter has its own keys and values.
    const salt = `${this.weights} ${adapter?.version ?? 0} ${cacheSalt}`;
    const salted = { ...request, cacheSalt: salt };
    try {
      return this.beginJob(request, salted, adapter);
    } catch (error) {
      for (let i = 0; i < n; ++i) adapter?.release();
      throw error;
    }
  }

  /** Starts a request. `salted` is the request with the salt of its weights and adapter. */
  private beginJob(
    request: ReadRequest,
    salted: ReadRequest,
    adapter: AdapterUse | null,
  ): RunningRequest {
    const continuations = Array.from(
      { length: request.n },
      (_, index) => new Continuation(salted, index, this.parts.requests, adapter?.slot),
    );
    const job: RunningRequest = {
      request,
      continuations,
      adapter,
      pieces: this.listener.queueOf(request, () => this.abort(job)),
      followers: continuations.slice(1),
      hasStarted: false,
      unwatch: () => {},
    };
    this.start(job, required(continuations[0]));
    this.promptTokens += request.prompt.length;
    this.watch(job);
    this.loop ??= this.run();
    return job;
  }

  private start(job: RunningRequest, continuation: Continuation): void {
    const { sequence } = continuation;
    this.scheduler.submit(sequence);
    this.sequences.set(sequence, { job, continuation });
  }

  private watch(job: RunningRequest): void {
    const { signal } = job.request;
    if (!signal) return;
    if (signal.aborted) this.abort(job);
    else job.unwatch = whenAborted(signal, () => this.abort(job));
  }

  /**
   * Runs steps until no work is left. Requests of one event-loop turn start in the same step. With
   * runsAhead, a step is in flight while the host handles the last one:
   *
   *   host     launch 1   launch 2   land 1   launch 3   land 2
   *   device       [ step 1 ]  [ step 2 ]         [ step 3 ]
   *
   * A sequence that ends in step n is then also computed in step n + 1. That surplus token is
   * dropped. Sampling with a format needs the last token. While the device computes the forward,
   * native threads fill the masks and the host handles the tokens of the last step:
   *
   *   threads                       [ masks 2 ]
   *   host     forward 2   follow 1   land 1     sample 2
   *   device       [ forward 2                 ][ sample 2 ]
   *
   * Proposals need all tokens, so a step with proposals launches after the last step has landed. So
   * does the step after it.
   */
  private async run(): Promise<void> {
    let last: StepInFlight | null = null;
    for (;;) {
      await waitForEventLoop();
      if (this.scheduler.isIdle && !last) break;
      if (last && (last.isSpeculative || this.expectsProposals())) {
        await this.land(last);
        last = null;
      }
      const forwarded = this.begin(await this.planSlices());
      const isMasked = forwarded?.sequences.some((sequence) => this.matcherOf(sequence)) ?? false;
      if (forwarded && isMasked) {
        if (last) await this.land(last, forwarded.sequences);
        else await this.fillMasks(forwarded.sequences);
        last = null;
      }
      const next = forwarded && this.sample(forwarded);
      if (last) await this.land(last);
      last = next;
      if (!next || this.parts.runsAhead) continue;
      last = null;
      await this.land(next);
    }
    this.loop = null;
    this.listener.idle();
  }

  /** Returns the slices of the next step, with their proposals. Empty without work. */
  private async planSlices(): Promise<readonly Slice[]> {
    let slices: readonly Slice[] = [];
    try {
      slices = this.timeHost(() => {
        this.propose();
        return this.startRequests(this.scheduler.plan());
      });
      const { draft } = this.parts;
      const open = slices
        .map(({ sequence }) => sequence)
        .filter((sequence) => sequence.proposals.length > 0 && !this.matcherOf(sequence));
      if (!draft || open.length === 0) return slices;
      await draft.fill(open, (scores, rows, into) => this.sampler.draft(scores, rows, into));
      // The draft model may propose fewer tokens than planned, and requests may end meanwhile.
      return slices
        .filter(({ sequence }) => this.sequences.has(sequence))
        .map(({ sequence, first, count }) => {
          return { sequence, first, count: Math.min(count, sequence.extent - first) };
        });
    } catch (error) {
      this.failPlanned(slices, error);
      return [];
    }
  }

  private failPlanned(slices: readonly Slice[], error: unknown): void {
    const planned = slices.map(({ sequence }) => this.sequences.get(sequence));
    this.failAll(slices.length > 0 ? planned : this.sequences.values(), error);
  }

  /** Enqueues the forward of a step. Returns null without work or after an error. */
  private begin(slices: readonly Slice[]): ForwardedStep | null {
    if (slices.length === 0) return null;
    return this.timeHost(() => {
      try {
        const forwarded = this.runner.begin(slices);
        this.scheduler.commit(slices);
        this.steps++;
        return forwarded;
      } catch (error) {
        this.failPlanned(slices, error);
        return null;
      }
    });
  }

  private expectsProposals(): boolean {
    const { speculator, scheduler } = this;
    if (!speculator) return false;
    return speculator.expects(scheduler.decoding);
  }

  /** Sets the proposals of the next step. */
  private propose(): void {
    this.speculator?.propose(this.scheduler.decoding);
  }

  /** Enqueues the sampling of a step for sequences that have not ended meanwhile. */
  private sample(forwarded: ForwardedStep): StepInFlight | null {
    return this.timeHost(() => {
      try {
        return this.runner.sample(
          forwarded,
          (scores, rows, into) => this.sampler.sample(scores, rows, into),
          (sequence) => this.sequences.has(sequence),
        );
      } catch (error) {
        this.failAll(
          forwarded.sequences.map((sequence) => this.sequences.get(sequence)),
          error,
        );
        return null;
      }
    });
  }

  /** Adds the host time of a call to the counters. */
  private timeHost<T>(call: () => T): T {
    const begin = performance.now();
    try {
      return call();
    } finally {
      this.hostMs += performance.now() - begin;
    }
  }

  private matcherOf(sequence: Sequence): Matcher | null {
    return this.sequences.get(sequence)?.continuation.matcher ?? null;
  }

  /** Fills masks on native threads. After an error, fills each alone: only its request fails. */
  private async fillMasks(sequences: readonly Sequence[]): Promise<void> {
    const mask = (): Sequence[] => sequences.filter((sequence) => this.matcherOf(sequence));
    try {
      await this.sampler.fillMasks(mask());
    } catch {
      for (const sequence of mask()) {
        if (!this.matcherOf(sequence)) continue;
        await this.sampler
          .fillMasks([sequence])
          .catch((error: unknown) => this.failAll([this.sequences.get(sequence)], error));
      }
    }
  }

  /**
   * Waits for a step in turns of the event loop, and handles its tokens. Meanwhile native threads
   * fill the masks of `masked`, sequences of the next step.
   */
  private async land(flight: StepInFlight, masked: readonly Sequence[] = []): Promise<void> {
    const next = await this.awaitTokens(flight);
    let filled: Promise<void> | null = null;
    if (masked.length > 0) {
      this.timeHost(() => this.follow(next));
      filled = this.fillMasks(masked);
    }
    try {
      this.timeHost(() => this.handleTokens(next));
    } catch (error) {
      this.failFlight(flight, error);
    }
    await filled;
  }

  /** Resolves with the tokens of a step. After an error of the device its requests fail. */
  private async awaitTokens(flight: StepInFlight): Promise<readonly NextTokens[]> {
    try {
      await flight.landed();
      return this.timeHost(() => flight.next());
    } catch (error) {
      this.failFlight(flight, error);
      return [];
    }
  }

  private failFlight({ sequences }: StepInFlight, error: unknown): void {
    this.failAll(
      sequences.map((sequence) => this.sequences.get(sequence)),
      error,
    );
  }

  private handleTokens(next: readonly NextTokens[]): void {
    for (const { sequence, sampled, proposed } of next) {
      for (const token of sampled) this.accept(sequence, token);
      this.speculator?.learn(sequence, proposed, sampled.length - 1);
    }
  }

  /** Moves matchers past tokens that accept() gets next. The step has no proposals. */
  private follow(next: readonly NextTokens[]): void {
    for (const { sequence, sampled } of next) {
      const entry = this.sequences.get(sequence);
      const [item] = sampled;
      if (!entry || !item || item.token < 0) continue;
      try {
        entry.continuation.follow(item.token);
      } catch (error) {
        this.fail(entry.job, error);
      }
    }
  }

  private failAll(entries: Iterable<RunningSequence | undefined>, error: unknown): void {
    if (error instanceof DsError && error.code === 'DS_CUDA') this.checkDevice();
    for (const job of distinctJobs(entries)) this.fail(job, error);
  }

  /**
   * Keeps a fatal error of the GPU, such as an illegal access, after which every call fails.
   * Ignores other errors.
   */
  private checkDevice(): void {
    try {
      this.parts.model.cacheShape().device.synchronize();
    } catch (error) {
      if (error instanceof DsError) this.deviceFailure ??= error;
    }
  }

  /**
   * Calls onStart of requests in their first step. If onStart throws, the request fails and its
   * slices are dropped.
   */
  private startRequests(slices: readonly Slice[]): readonly Slice[] {
    for (const { sequence } of slices) {
      const job = this.sequences.get(sequence)?.job;
      if (!job || job.hasStarted) continue;
      job.hasStarted = true;
      try {
        job.request.onStart?.();
      } catch (error) {
        this.fail(job, error);
      }
    }
    return slices.filter(({ sequence }) => this.sequences.has(sequence));
  }

  private accept(sequence: Sequence, sampled: SampledToken): void {
    const entry = this.sequences.get(sequence);
    if (!entry) return;
    const { job, continuation } = entry;
    const error = samplingError('InferenceEngine', sampled.token);
    if (error) {
      this.fail(job, error);
      return;
    }
    if (job.followers.length > 0) {
      const { followers } = job;
      job.followers = [];
      for (const follower of followers) this.start(job, follower);
    }
    this.generatedTokens++;
    let piece: GenerationPiece;
    try {
      piece = continuation.accept(sampled);
    } catch (error) {
      this.fail(job, error);
      return;
    }
    const { isDone } = continuation;
    if (isDone) this.leave(job, continuation);
    job.pieces.push(piece);
    if (isDone && job.continuations.every((continuation) => continuation.isDone)) this.end(job);
  }

  /** Frees the blocks and the slot of a continuation, and ends its use of an adapter. */
  private leave(job: RunningRequest, continuation: Continuation): void {
    job.adapter?.release();
    const { sequence, finishReason } = continuation;
    this.scheduler.remove(sequence);
    this.sequences.delete(sequence);
    this.sampler.leave(continuation);
    continuation.matcher?.dispose();
    if (finishReason) this.finished[finishReason]++;
  }

  private abort(job: RunningRequest): void {
    for (const continuation of job.continuations) {
      if (continuation.isDone) continue;
      const piece = continuation.abort();
      this.leave(job, continuation);
      job.pieces.push(piece);
    }
    this.end(job);
  }

  private fail(job: RunningRequest, error: unknown): void {
    job.pieces.fail(error);
    this.abort(job);
  }

  private end(job: RunningRequest): void {
    job.unwatch();
    job.pieces.end();
  }
}

/** Returns a version of the weights. It changes with every update of a parameter. */
function weightsVersion(model: CausalLM): string {
  const parameters = model.parameters();
  const latest = parameters.reduce((max, { changedAt }) => Math.max(max, changedAt), 0);
  return `${parameters.length}:${latest}`;
}

function distinctJobs(entries: Iterable<RunningSequence | undefined>): Set<RunningRequest> {
  const jobs = new Set<RunningRequest>();
  for (const entry of entries) if (entry) jobs.add(entry.job);
  return jobs;
}
