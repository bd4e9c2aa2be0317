// Stops all ranks after the same step, when a signal or the program of any rank requests it.
import { requireSignals, StopSignals } from '../../runtime/stop-signals.js';

interface StopOptions {
  /** Ranks of the job. */
  worldSize: number;
  /** Signals that request a stop. They count from the first read of `isDue` or `signal`. */
  signals: readonly NodeJS.Signals[];
}

/** The user at the terminal, a scheduler or launcher, and a closed terminal send these. */
export const STOP_SIGNALS: readonly NodeJS.Signals[] = ['SIGINT', 'SIGTERM', 'SIGHUP'];

/**
 * A rank sends its request with its gradient norm, in the exchange of every step, and all ranks
 * receive it with the step decision. A rank may take that decision early (the learning rate needs
 * it). So the request acts at the end of the next step: every rank has taken the decision by then.
 * A job of one rank does not wait.
 */
export class StopRequest {
  private readonly controller = new AbortController();
  private signals: StopSignals | null = null;
  /** Why this rank requests a stop; null if it does not. */
  private reason: string | null = null;
  /** Finished steps. */
  private steps = 0;
  /** Number of finished steps when the ranks received a request; null before. */
  private agreedAt: number | null = null;
  private isDisposed = false;

  /** Throws DS_ARGUMENT for invalid signals. */
  constructor(private readonly options: StopOptions) {
    requireSignals(options.signals);
  }

  /** Requests a stop; the first `reason` stands. */
  request(reason: string): void {
    this.reason ??= reason;
  }

  get isRequested(): boolean {
    this.reason ??= this.signals?.receivedSignals ?? null;
    return this.reason !== null;
  }

  /** Whether all ranks must stop now. The first read starts to listen to signals. */
  get isDue(): boolean {
    this.listen();
    const { worldSize } = this.options;
    const due =
      worldSize === 1 ? this.isRequested : this.agreedAt !== null && this.steps > this.agreedAt;
    if (due && !this.controller.signal.aborted) {
      this.controller.abort(new Error(`Stop requested by ${this.reason ?? 'another rank'}.`));
    }
    return due;
  }

  /** Aborts when isDue becomes true at the end of a step, or at a read of isDue. */
  get signal(): AbortSignal {
    this.listen();
    return this.controller.signal;
  }

  /** Marks that the step decision contains the request of a rank. */
  markAgreement(): void {
    this.agreedAt ??= this.steps;
  }

  /** Counts a finished step. */
  markStep(): void {
    this.steps++;
    if (this.signals) void this.isDue;
  }

  dispose(): void {
    this.isDisposed = true;
    this.signals?.dispose();
    this.signals = null;
  }

  private listen(): void {
    if (!this.isDisposed) this.signals ??= new StopSignals(this.options.signals);
  }
}
