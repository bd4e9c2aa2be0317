// Generator of ranks above 0 that share a model: computes the steps of rank 0 and returns its
// pieces.

import { DsError } from '../../errors.js';
import { argumentError } from '../../runtime/input-errors.js';
import type { GenerationPiece } from '../continuation.js';
import type { Generator, InferenceStats, Submitted } from '../generator.js';
import { PieceQueue } from '../piece-queue.js';
import type { ReadRequest } from '../request.js';
import type { StepRunner } from '../step-runner.js';
import { refuseShared, requestDigest } from './lead.js';
import { asleepError, type EngineRole } from './role.js';
import type { Message, RequestEvent, StepChannel } from './step-channel.js';

/** A request that this rank, rank 0 or both have submitted. */
interface FollowedRequest {
  readonly pieces: PieceQueue<GenerationPiece>;
  /** Digest of the request on rank 0; null until rank 0 announces it. */
  leaderDigest: string | null;
  /** Digest of the request on this rank; null before it is submitted. */
  localDigest: string | null;
  isOver: boolean;
}

const EMPTY_STATS: InferenceStats = {
  running: 0,
  waiting: 0,
  blocksUsed: 0,
  blocks: 0,
  prefixQueries: 0,
  prefixHits: 0,
  hostHits: 0,
  preemptions: 0,
  promptTokens: 0,
  generatedTokens: 0,
  proposedTokens: 0,
  acceptedTokens: 0,
  steps: 0,
  hostMs: 0,
  finished: { stop: 0, length: 0, abort: 0 },
};

/** Receives messages while it has requests or follows rank 0. Owns the runner. */
export class FollowerGenerator implements Generator, EngineRole {
  private readonly requests = new Map<number, FollowedRequest>();
  private submitted = 0;
  private listening: Promise<void> | null = null;
  /** Whether rank 0 will send another step. */
  private isStepping = false;
  private isFollowing = false;
  private isClosing = false;
  private isOver = false;

  constructor(
    readonly rank: number,
    private readonly channel: StepChannel,
    private readonly runner: StepRunner,
  ) {}

  get isBusy(): boolean {
    return this.listening !== null;
  }

  get failure(): DsError | null {
    return this.channel.failure;
  }

  submit(request: ReadRequest): Submitted {
    if (this.isFollowing) throw this.unmatchedRequestError();
    const number = this.submitted++;
    const followed = this.getRequest(number);
    followed.localDigest = requestDigest(request);
    this.compareDigests(followed);
    if (followed.isOver) this.requests.delete(number);
    this.listen().catch((error: unknown) => this.failAll(error));
    return { pieces: followed.pieces, abort: () => followed.pieces.end() };
  }

  async follow(): Promise<void> {
    this.isFollowing = true;
    await this.listen();
  }

  sleep(): void {
    throw asleepError();
  }

  wake(): void {}

  stats(): InferenceStats {
    return { ...EMPTY_STATS, finished: { ...EMPTY_STATS.finished } };
  }

  count(): void {}

  /** Waits until rank 0 destroys its engine. Rejects with DS_COMM. */
  async close(): Promise<void> {
    this.isClosing = true;
    try {
      if (!this.isOver) await this.listen();
    } finally {
      for (const { pieces } of this.requests.values()) pieces.end();
      this.channel.close();
      this.runner.dispose();
    }
  }

  requireForward(): void {
    if (!this.isNeeded) return;
    throw argumentError(
      'InferenceEngine.call',
      'a forward that all ranks begin together',
      'a call during the steps of rank 0',
      'Call it on all ranks that share the model, while no generation runs.',
    );
  }

  requireAlone = refuseShared;

  private listen(): Promise<void> {
    this.listening ??= this.run().finally(() => {
      this.listening = null;
    });
    return this.listening;
  }

  private get isNeeded(): boolean {
    if (this.isOver) return false;
    if (this.isStepping || this.isFollowing || this.isClosing) return true;
    return [...this.requests.values()].some(
      ({ localDigest, isOver }) => localDigest !== null && !isOver,
    );
  }

  private async run(): Promise<void> {
    try {
      while (this.isNeeded) this.handleMessage(await this.channel.next(this.isStepping));
    } catch (error) {
      if (this.isFollowing) this.channel.giveUp(error);
      throw error;
    }
  }

  private handleMessage(message: Message): void {
    const { kind } = message;
    if (kind === 'heartbeat') return;
    this.isStepping = kind === 'step';
    this.isOver = kind === 'end';
    for (const event of message.events) this.handleEvent(event);
    if (kind === 'step') this.runner.compute(message.batch);
  }

  private handleEvent(event: RequestEvent): void {
    const followed = this.getRequest(event.number);
    if (event.kind === 'submitted') followed.leaderDigest = event.digest;
    if (event.kind === 'piece') followed.pieces.push(event.piece);
    if (event.kind === 'failed') followed.pieces.fail(new DsError(event.error));
    if (event.kind === 'ended') followed.pieces.end();
    followed.isOver ||= event.kind === 'failed' || event.kind === 'ended';
    this.compareDigests(followed);
    if (followed.isOver && followed.localDigest !== null) this.requests.delete(event.number);
  }

  private getRequest(number: number): FollowedRequest {
    const existing = this.requests.get(number);
    if (existing) return existing;
    const pieces = new PieceQueue<GenerationPiece>(() => {});
    const request: FollowedRequest = {
      pieces,
      leaderDigest: null,
      localDigest: null,
      isOver: false,
    };
    this.requests.set(number, request);
    return request;
  }

  /**
   * Fails a request that differs from rank 0's request, because its pieces belong to another
   * prompt.
   */
  private compareDigests({ leaderDigest, localDigest, pieces }: FollowedRequest): void {
    if (leaderDigest === null || localDigest === null || leaderDigest === localDigest) return;
    pieces.fail(
      argumentError(
        'InferenceEngine request',
        'the same requests, in the same order, on all ranks that share the model',
        `a different request on rank ${this.rank} than on rank 0`,
        'If only rank 0 receives requests, call follow() on the other ranks.',
      ),
    );
  }

  private failAll(error: unknown): void {
    for (const { pieces } of this.requests.values()) pieces.fail(error);
    this.requests.clear();
  }

  private unmatchedRequestError(): DsError {
    return argumentError(
      'InferenceEngine request',
      'requests on rank 0, which this rank follows',
      `a request on rank ${this.rank}`,
    );
  }
}
