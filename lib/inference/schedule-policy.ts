// Decides which sequence starts first, computes first and is preempted first. The scheduler calls
// it.
import { required } from '../runtime/required.js';
import type { QueuePosition, ScheduledClient, Sequence } from './sequence.js';

/** Settings of a policy: the section `scheduling` of the configuration. */
export interface PolicySettings {
  /**
   * "fair": clients take turns by tokens, and priorities order the requests of one client.
   * "priority": priorities order all requests. "fcfs": the order of arrival.
   */
  readonly policy: 'fair' | 'priority' | 'fcfs';
  /** Steps in the queue after which a sequence counts as the most urgent one of its client. */
  readonly maxWait: number;
}

/** Default: clients take turns. */
const DEFAULT_POLICY: PolicySettings = { policy: 'fair', maxWait: 1000 };

/** Minimum lead in tokens of a client before its sequence is preempted for another client. */
const QUANTUM = 64;

/**
 * Virtual token counters: each client has a counter of the tokens that steps computed for it, and
 * the client with the lowest counter goes next. A client that returns starts at the lowest counter
 * of the present clients, so it cannot save up turns. Tokens found in the prefix cache are free.
 *
 * A sequence without free blocks preempts a sequence of another client under two conditions: that
 * client runs more sequences, and its counter is higher by QUANTUM and by the tokens to recompute.
 * So a client with many requests delays another one by no more than these tokens. Source: Sheng et
 * al. 2024 (VTC), here with preemption.
 */
export class SchedulePolicy {
  private readonly clients = new Map<string, ScheduledClient>();
  private steps = 0;
  private seen = 0;

  constructor(private readonly settings: PolicySettings = DEFAULT_POLICY) {}

  /** Counts a step, the unit of waiting. */
  countStep(): void {
    this.steps++;
  }

  /** Registers a sequence that enters the queue for the first time. */
  enter(sequence: Sequence): void {
    const { policy } = this.settings;
    const client = this.clientOf(policy === 'fair' ? sequence.client : '');
    client.waiting++;
    sequence.queuePosition = {
      client,
      urgency: policy === 'fcfs' ? 0 : sequence.priority,
      isRunning: false,
      since: this.steps,
      isOverdue: false,
      charged: 0,
    };
  }

  /** Registers that a waiting sequence starts to run. */
  start(sequence: Sequence): void {
    const queuePosition = this.positionOf(sequence);
    queuePosition.isRunning = true;
    queuePosition.client.waiting--;
    queuePosition.client.running++;
  }

  /** Registers that a running sequence returns to the queue. */
  stop(sequence: Sequence): void {
    const queuePosition = this.positionOf(sequence);
    queuePosition.isRunning = false;
    queuePosition.since = this.steps;
    queuePosition.client.running--;
    queuePosition.client.waiting++;
  }

  /** Removes a sequence. Ignores unknown sequences. */
  leave(sequence: Sequence): void {
    const { queuePosition } = sequence;
    if (!queuePosition) return;
    sequence.queuePosition = null;
    const { client, isRunning } = queuePosition;
    if (isRunning) client.running--;
    else client.waiting--;
    if (client.running + client.waiting === 0) this.dropAbsent();
  }

  /** Whether running sequences may be preempted for other clients. */
  get isShared(): boolean {
    return this.clients.size > 1;
  }

  /** Charges the client for a step that computes the tokens `first` to `end` - 1 of a sequence. */
  charge(sequence: Sequence, first: number, end: number): void {
    const queuePosition = this.positionOf(sequence);
    const from = Math.max(first, queuePosition.charged);
    if (end <= from) return;
    queuePosition.client.time += end - from;
    queuePosition.charged = end;
  }

  /** Returns the sequence whose turn it is; undefined for an empty list. */
  first(sequences: readonly Sequence[]): Sequence | undefined {
    return sequences.reduce<Sequence | undefined>(
      (best, sequence) => (best && this.compare(best, sequence) <= 0 ? best : sequence),
      undefined,
    );
  }

  /** Returns the sequences in the order of their turns. */
  inOrder(sequences: readonly Sequence[]): Sequence[] {
    return sequences.toSorted((a, b) => this.compare(a, b));
  }

  /**
   * Returns the running sequence to preempt if a running sequence finds no free block: the last
   * sequence of the client with the most running sequences.
   */
  victim(running: readonly Sequence[]): Sequence {
    const max = Math.max(...Array.from(this.clients.values(), (client) => client.running));
    const open = running.filter((sequence) => this.positionOf(sequence).client.running === max);
    return open.reduce((a, b) => (this.isAfter(a, b) ? a : b));
  }

  /**
   * Returns the running sequence to preempt for a waiting one; null if the waiting one has no
   * claim.
   */
  victimFor(waiting: Sequence, running: readonly Sequence[]): Sequence | null {
    const waitingClient = this.positionOf(waiting).client;
    let max = waitingClient;
    for (const client of this.clients.values()) {
      const more = client.running - max.running;
      if (more > 0 || (more === 0 && client.time > max.time)) max = client;
    }
    if (max.running <= waitingClient.running) return null;
    const clientSequences = running.filter((sequence) => this.positionOf(sequence).client === max);
    const last = clientSequences.reduce((a, b) => (this.isAfter(a, b) ? a : b));
    return max.time - waitingClient.time > Math.max(QUANTUM, last.computed) ? last : null;
  }

  /** Negative if `a` goes before `b`: by the client's time, then by urgency, then by arrival. */
  private compare(a: Sequence, b: Sequence): number {
    const [clientA, clientB] = [this.positionOf(a).client, this.positionOf(b).client];
    if (clientA !== clientB) return clientA.time - clientB.time || clientA.id - clientB.id;
    const [urgencyA, urgencyB] = [this.urgencyOf(a), this.urgencyOf(b)];
    return urgencyA === urgencyB ? a.order - b.order : urgencyA < urgencyB ? -1 : 1;
  }

  /** True if `a` is preempted before `b`: it is less urgent, or equally urgent and newer. */
  private isAfter(a: Sequence, b: Sequence): boolean {
    const [urgencyA, urgencyB] = [this.urgencyOf(a), this.urgencyOf(b)];
    return urgencyA === urgencyB ? a.order > b.order : urgencyA > urgencyB;
  }

  private urgencyOf(sequence: Sequence): number {
    const queuePosition = this.positionOf(sequence);
    const { isRunning, since } = queuePosition;
    if (!isRunning && this.steps - since >= this.settings.maxWait) queuePosition.isOverdue = true;
    return queuePosition.isOverdue ? Number.NEGATIVE_INFINITY : queuePosition.urgency;
  }

  private positionOf({ queuePosition }: Sequence): QueuePosition {
    return required(queuePosition);
  }

  /**
   * Returns a client. The counter of an absent client first rises to the lowest counter of the
   * present clients.
   */
  private clientOf(name: string): ScheduledClient {
    const client = this.clients.get(name) ?? { id: this.seen++, time: 0, running: 0, waiting: 0 };
    if (client.running + client.waiting === 0) client.time = Math.max(client.time, this.earliest());
    this.clients.set(name, client);
    return client;
  }

  /** The lowest time of the present clients; 0 without one. */
  private earliest(): number {
    const times = this.present().map(({ time }) => time);
    return times.length > 0 ? Math.min(...times) : 0;
  }

  private present(): ScheduledClient[] {
    return [...this.clients.values()].filter(({ running, waiting }) => running + waiting > 0);
  }

  /**
   * Drops all absent clients if no client is present. Otherwise drops absent clients up to the time
   * of the earliest present one.
   */
  private dropAbsent(): void {
    const isIdle = this.present().length === 0;
    const earliest = this.earliest();
    for (const [name, { running, waiting, time }] of this.clients) {
      if (running + waiting === 0 && (isIdle || time <= earliest)) this.clients.delete(name);
    }
  }
}
