// Generator of rank 0 if ranks share a model: schedules and samples, and sends each step to the
// other ranks.

import { createHash } from 'node:crypto';
import { DsError } from '../../errors.js';
import { argumentError } from '../../runtime/input-errors.js';
import type { Generation, GenerationPiece } from '../continuation.js';
import type { Generator, InferenceStats, Submitted } from '../generator.js';
import { PieceQueue } from '../piece-queue.js';
import type { ReadRequest } from '../request.js';
import type { StepBatch } from '../step-batch.js';
import type { StepLoop } from '../step-loop.js';
import type { StepListener } from '../step-loop-parts.js';
import { asleepError, type EngineRole } from './role.js';
import { errorFields, type RequestEvent, type StepChannel } from './step-channel.js';

/** A message about a request, without the request's number. */
type EventBody = RequestEvent extends infer One
  ? One extends RequestEvent
    ? Omit<One, 'number'>
    : never
  : never;

/**
 * Returns a digest to compare requests between ranks. It omits the seed, because only rank 0
 * samples.
 */
export function requestDigest(request: ReadRequest): string {
  const { prompt, maxNewTokens, textBefore, n, stop, stopTokens, cacheSalt, sampling } = request;
  const { seed: _, ...rules } = sampling;
  const limits = [maxNewTokens, n, stop, stopTokens, request.format?.key];
  const requestKey = [prompt, textBefore.length, limits, cacheSalt, rules, request.adapter];
  const text = JSON.stringify(requestKey, (_, value) =>
    value instanceof Map || value instanceof Set ? [...value] : value,
  );
  return createHash('sha256').update(text).digest('hex');
}

/** A piece queue that also reports its events to the other ranks. */
class ReportQueue extends PieceQueue<GenerationPiece> {
  private isOver = false;

  constructor(
    onLeave: () => void,
    private readonly report: (body: EventBody) => void,
  ) {
    super(onLeave);
  }

  override push(piece: GenerationPiece): void {
    if (!this.isOver) this.report({ kind: 'piece', piece });
    super.push(piece);
  }

  override fail(error: unknown): void {
    if (!this.isOver) this.report({ kind: 'failed', error: errorFields(error) });
    super.fail(error);
  }

  override end(): void {
    if (!this.isOver) this.report({ kind: 'ended' });
    this.isOver = true;
    super.end();
  }
}

/**
 * Generator of rank 0: runs a StepLoop, and sends its batches and request events to the other
 * ranks.
 */
export class LeaderGenerator implements Generator, StepListener, EngineRole {
  readonly rank = 0;
  private readonly loop: StepLoop;
  private events: RequestEvent[] = [];
  private submitted = 0;
  /** Heartbeat for ranks in follow(); null if all ranks submit the same requests. */
  private heartbeat: NodeJS.Timeout | null = null;
  private wasSilent = true;
  /** Whether the other ranks wait for another step. */
  private isStepping = false;

  /** `timeoutMs`: milliseconds without a message after which the other ranks fail. */
  constructor(
    private readonly channel: StepChannel,
    private readonly timeoutMs: number,
    makeLoop: (lead: LeaderGenerator) => StepLoop,
  ) {
    this.loop = makeLoop(this);
  }

  get isBusy(): boolean {
    return this.loop.isBusy;
  }

  get failure(): DsError | null {
    return this.channel.failure ?? this.loop.failure;
  }

  /** Sends a batch that all ranks compute now. */
  announce(batch: StepBatch): void {
    this.wasSilent = false;
    this.isStepping = true;
    this.channel.send({ kind: 'step', batch, events: this.takeEvents() });
  }

  queueOf(request: ReadRequest, onLeave: () => void): PieceQueue<GenerationPiece> {
    const number = this.submitted++;
    const report = (body: EventBody): void => this.report({ number, ...body } as RequestEvent);
    report({ kind: 'submitted', digest: requestDigest(request) });
    return new ReportQueue(onLeave, report);
  }

  idle(): void {
    if (!this.isStepping && this.events.length === 0) return;
    this.isStepping = false;
    this.tryReport(() => this.channel.send({ kind: 'idle', events: this.takeEvents() }));
  }

  submit(request: ReadRequest): Submitted {
    try {
      return this.loop.submit(request);
    } catch (error) {
      this.report({ number: this.submitted - 1, kind: 'failed', error: errorFields(error) });
      if (!this.isBusy) this.idle();
      throw error;
    }
  }

  async follow(): Promise<void> {
    if (this.heartbeat) return;
    this.events = [];
    this.heartbeat = setInterval(() => this.sendHeartbeat(), this.timeoutMs / 4).unref();
  }

  sleep(): void {
    throw asleepError();
  }

  wake(): void {}

  stats(): InferenceStats {
    return this.loop.stats();
  }

  count(promptTokens: number, made: readonly Generation[]): void {
    this.loop.count(promptTokens, made);
  }

  async close(): Promise<void> {
    await this.loop.close();
    if (this.heartbeat) clearInterval(this.heartbeat);
    this.tryReport(() => this.channel.send({ kind: 'end', events: this.takeEvents() }));
    this.channel.close();
  }

  requireForward({ isBusy }: Generator): void {
    if (!isBusy && !this.heartbeat) {
      this.idle();
      return;
    }
    throw argumentError(
      'InferenceEngine.call',
      'a forward that all ranks begin together',
      isBusy ? 'a call during a generation' : 'a call on a rank that others follow',
      'Call it on all ranks that share the model, while no generation runs.',
    );
  }

  requireAlone = refuseShared;

  private report(event: RequestEvent): void {
    if (!this.heartbeat) this.events.push(event);
  }

  private takeEvents(): readonly RequestEvent[] {
    const { events } = this;
    this.events = [];
    return events;
  }

  private sendHeartbeat(): void {
    if (this.wasSilent && !this.isBusy)
      this.tryReport(() => this.channel.send({ kind: 'heartbeat' }));
    this.wasSilent = true;
  }

  /** Ignores DS_COMM: the next step throws the error of the lost rank. */
  private tryReport(report: () => void): void {
    try {
      report();
    } catch (error) {
      if (!(error instanceof DsError && error.code === 'DS_COMM')) throw error;
    }
  }
}

/** Throws DS_ARGUMENT for an option or a method that ranks with a shared model do not support. */
export function refuseShared(option: string): void {
  throw argumentError(
    `InferenceEngine ${option}`,
    'an engine that has the whole model',
    'a model that ranks share (tensor_parallel or moe)',
    `Set tensor_parallel.tp_size and moe.ep_size to 1 to use ${option}.`,
  );
}
