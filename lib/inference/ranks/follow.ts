// The generator of ranks above 0 that share a model: computes the steps of rank 0 and returns its
// pieces.

import { DsError } from '../../errors.js';
import { argumentError } from '../../runtime/input-errors.js';
import type { GenerationPiece } from '../continuation.js';
import type { Generator, InferenceStats, Submitted } from '../generator.js';
import { PieceQueue } from '../piece-queue.js';
import type { ReadRequest } from '../request.js';
import type { StepRunner } from '../step-runner.js';
import { digestOf, refuseShared } from './lead.js';
import { asleep, type EngineRole } from './role.js';
import type { Message, RequestEvent, StepLine } from './step-line.js';

/** A request on this rank, on rank 0, or on both. */
interface Report {
  readonly pieces: PieceQueue<GenerationPiece>;
  /** Digest of the request on rank 0; null until rank 0 announces it. */
  asked: string | null;
  /** Digest of the request on this rank; null before it is submitted. */
  mine: string | null;
  isOver: boolean;
}

const NOTHING: InferenceStats = {
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
  private readonly reported = new Map<number, Report>();
  private submitted = 0;
  private listening: Promise<void> | null = null;
  /** Rank 0 will send another step. */
  private isStepping = false;
  private isFollowing = false;
  private isClosing = false;
  private isOver = false;

  constructor(
    readonly rank: number,
    private readonly line: StepLine,
    private readonly runner: StepRunner,
  ) {}

  get isBusy(): boolean {
    return this.listening !== null;
  }

  get failure(): DsError | null {
    return this.line.failure;
  }

  submit(request: ReadRequest): Submitted {
    if (this.isFollowing) throw this.asksAlone();
    const number = this.submitted++;
    const report = this.of(number);
    report.mine = digestOf(request);
    this.compare(report);
    if (report.isOver) this.reported.delete(number);
    this.listen().catch((error: unknown) => this.failAll(error));
    return { pieces: report.pieces, abort: () => report.pieces.end() };
  }

  async follow(): Promise<void> {
    this.isFollowing = true;
    await this.listen();
  }

  sleep(): void {
    throw asleep();
  }

  wake(): void {}

  stats(): InferenceStats {
    return { ...NOTHING, finished: { ...NOTHING.finished } };
  }

  count(): void {}

  /** Waits until rank 0 destroys its engine. Rejects with DS_COMM. */
  async close(): Promise<void> {
    this.isClosing = true;
    try {
      if (!this.isOver) await this.listen();
    } finally {
      for (const { pieces } of this.reported.values()) pieces.end();
      this.line.close();
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
    return [...this.reported.values()].some(({ mine, isOver }) => mine !== null && !isOver);
  }

  private async run(): Promise<void> {
    try {
      while (this.isNeeded) this.hear(await this.line.next(this.isStepping));
    } catch (error) {
      if (this.isFollowing) this.line.giveUp(error);
      throw error;
    }
  }

  private hear(message: Message): void {
    const { kind } = message;
    if (kind === 'pulse') return;
    this.isStepping = kind === 'step';
    this.isOver = kind === 'end';
    for (const event of message.events) this.learn(event);
    if (kind === 'step') this.runner.compute(message.batch);
  }

  private learn(event: RequestEvent): void {
    const report = this.of(event.number);
    if (event.kind === 'asked') report.asked = event.digest;
    if (event.kind === 'piece') report.pieces.push(event.piece);
    if (event.kind === 'failed') report.pieces.fail(new DsError(event.error));
    if (event.kind === 'ended') report.pieces.end();
    report.isOver ||= event.kind === 'failed' || event.kind === 'ended';
    this.compare(report);
    if (report.isOver && report.mine !== null) this.reported.delete(event.number);
  }

  private of(number: number): Report {
    const known = this.reported.get(number);
    if (known) return known;
    const pieces = new PieceQueue<GenerationPiece>(() => {});
    const made: Report = { pieces, asked: null, mine: null, isOver: false };
    this.reported.set(number, made);
    return made;
  }

  /**
   * Fails a request that differs from the one of rank 0; its pieces would belong to another prompt.
   */
  private compare({ asked, mine, pieces }: Report): void {
    if (asked === null || mine === null || asked === mine) return;
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
    for (const { pieces } of this.reported.values()) pieces.fail(error);
    this.reported.clear();
  }

  private asksAlone(): DsError {
    return argumentError(
      'InferenceEngine request',
      'requests on rank 0, which this rank follows',
      `a request on rank ${this.rank}`,
    );
  }
}
