// The wish to stop: from a signal or the program on any rank, heard by all of them at the same
// step.
import { requireSignals, StopSignals } from '../../runtime/stop-signals.js';

export interface StopOptions {
  /** Ranks of the job. */
  worldSize: number;
  /** What asks this process to stop, once anybody wants to know. */
  signals: readonly NodeJS.Signals[];
}

/**
 * What asks a program to stop: a person at the terminal, a scheduler or launcher, a terminal that
 * closed.
 */
export const STOP_SIGNALS: readonly NodeJS.Signals[] = ['SIGINT', 'SIGTERM', 'SIGHUP'];

/**
 * A rank's wish travels with its gradient norm, in an exchange that every step has, and comes back
 * with the step's decision. When a rank takes that decision is its own affair (asking for the
 * learning rate takes it early), so what was agreed counts from the end of the following step on,
 * by when every rank has taken it. A rank alone need not wait.
 */
export class StopRequest {
  private readonly controller = new AbortController();
  private signals: StopSignals | null = null;
  /** Why this rank wishes to stop; null while it does not. */
  private reason: string | null = null;
  /** Steps that have ended. */
  private steps = 0;
  /** After how many of them a rank wished to stop; null before. */
  private agreedAt: number | null = null;
  private disposed = false;

  /** Throws DS_ARGUMENT for signals that are none. */
  constructor(private readonly options: StopOptions) {
    requireSignals(options.signals);
  }

  /** Makes this rank wish to stop; the first `reason` stands. */
  wish(reason: string): void {
    this.reason ??= reason;
  }

  /** Whether this rank wishes to stop. */
  get isWished(): boolean {
    this.reason ??= this.signals?.noted ?? null;
    return this.reason !== null;
  }

  /** Whether all ranks are to stop now. From the first time that anybody asks, signals count. */
  get isDue(): boolean {
    this.listen();
    const { worldSize } = this.options;
    const due =
      worldSize === 1 ? this.isWished : this.agreedAt !== null && this.steps > this.agreedAt;
    if (due && !this.controller.signal.aborted) {
      this.controller.abort(new Error(`Asked to stop by ${this.reason ?? 'another rank'}.`));
    }
    return due;
  }

  /** Aborts when isDue becomes true at the end of a step, or when somebody asks. */
  get signal(): AbortSignal {
    this.listen();
    return this.controller.signal;
  }

  /** The decision of the last step says that a rank wishes to stop. */
  agreed(): void {
    this.agreedAt ??= this.steps;
  }

  /** A step has ended. */
  stepped(): void {
    this.steps++;
    if (this.signals) void this.isDue;
  }

  dispose(): void {
    this.disposed = true;
    this.signals?.dispose();
    this.signals = null;
  }

  private listen(): void {
    if (!this.disposed) this.signals ??= new StopSignals(this.options.signals);
  }
}
