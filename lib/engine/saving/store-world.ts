// StoreWorld: the ranks of a job exchange JSON for checkpoints through the job's key-value store.

import { setTimeout as pause } from 'node:timers/promises';
import type { JsonObject, JsonValue } from '../../../types/json.js';
import {
  BEGIN_EXPORT,
  BEGIN_LOAD,
  BEGIN_SAVE,
  type CheckpointWorld,
  soloWorld,
} from '../../checkpoint/index.js';
import type { Distributed } from '../../comm/index.js';
import { DsError } from '../../errors.js';
import type { Job } from '../../runtime/job.js';

/**
 * Returns the ranks of the job, which exchange messages through its store. `hint`: the fix in the
 * error of a missing rank. Default: the hint for an engine's checkpoints.
 */
export function checkpointWorld(job: Distributed, hint?: string): CheckpointWorld {
  if (!job.store) return soloWorld;
  // Ranks build engines in the same order, so the names match.
  const name = job.nextName('checkpoint');
  const { rank, worldSize: size, store, timeout, world } = job;
  return new StoreWorld(store, { rank, size, name, timeout, check: () => world.check(), hint });
}

/** The required methods of a job's store. */
export interface TextStore {
  set(key: string, value: string): Promise<void>;
  /** Waits for the key. Rejects with DS_COMM, got "no such key", after `timeout` milliseconds. */
  get(key: string, timeout: number): Promise<string>;
  delete(key: string): Promise<boolean>;
  /** Adds `step` to a number (initially 0); resolves with the sum. Without it no rank stands in. */
  add?(key: string, step: number): Promise<number>;
  /** Lets another thread join: see Job.offer. */
  offer?(): number;
}

/** The plain data by which another thread joins the world. */
export interface WorldOffer extends Omit<StoreWorldOptions, 'check'> {
  /** The offer of the job's store. */
  offer: number;
}

interface StoreWorldOptions {
  rank: number;
  size: number;
  /** Prefix of the keys of these exchanges; the same on every rank. */
  name: string;
  /** Milliseconds within which the other ranks must arrive. */
  timeout: number;
  /** Throws the failure of the job, if it failed. Then no rank waits any longer. */
  check: () => void;
  /**
   * Hint of the error if a rank is missing or makes another call. Default: the hint for
   * checkpoints.
   */
  hint?: string;
  /** Position of the first exchange. Default: the start of this world. */
  first?: Round;
}

/** An exchange of a world. */
interface Round {
  name: string;
  number: number;
}

/** The store's limit for one value is 4 MiB. */
const CHUNK = 2 ** 20;
/** Longest wait of one request: requests of a process run one after another. */
const REQUEST_MS = 50;
/** The death of a rank often breaks the store first. The job reports the death within this time. */
const REASON_MS = 1000;

/** The first exchanges of calls that every rank must make. */
const CALLS: ReadonlyMap<string, string> = new Map([
  [BEGIN_SAVE, 'saveCheckpoint()'],
  [BEGIN_LOAD, 'loadCheckpoint()'],
  [BEGIN_EXPORT, 'save16bitModel()'],
]);
/** A rank that waits this long in a call stands in: see StoreWorld.standBy(). */
const STAND_IN_MS = 3000;
/** The arrival counter adds this for each rank that stands in, and 1 for each rank that arrives. */
const STANDING = 2 ** 24;

/** The message of a rank in one round. */
interface Message extends JsonObject {
  label: string;
  value: JsonValue;
  /**
   * Set on the last rank that arrives at a call: the number of ranks that stood in before. Else
   * null.
   */
  stood: number | null;
}

/**
 * Exchanges use no collectives, so a background save does not disturb their order. Every rank makes
 * the same exchanges in the same order.
 */
export class StoreWorld implements CheckpointWorld {
  readonly rank: number;
  readonly size: number;
  private round = 0;
  /** Keys of this rank that other ranks may still read, by round. */
  private readonly ownKeys = new Map<number, string[]>();
  private standIn: ((text: string) => void) | null = null;

  constructor(
    private readonly store: TextStore,
    private readonly options: StoreWorldOptions,
  ) {
    this.rank = options.rank;
    this.size = options.size;
  }

  /**
   * `standIn` puts an error in place of this rank's next collectives. A rank calls it if others do
   * not arrive at a call: ranks that wait in a collective then fail at once with DS_COMM. If the
   * others do arrive, every rank calls it, so that all ranks agree on their next collectives.
   */
  standBy(standIn: (text: string) => void): void {
    this.standIn = standIn;
  }

  /**
   * Returns a world of the same ranks with separate exchanges. Its first exchange is also the next
   * one of this world. So a rank that makes it, and a rank that continues here, detect the
   * difference.
   */
  beside(): StoreWorld {
    const first = { name: this.options.name, number: this.round++ };
    const name = `${first.name}/beside/${first.number}`;
    return new StoreWorld(this.store, { ...this.options, name, first });
  }

  /**
   * Offers this world to another thread, which joins once with take(). Returns null if the store
   * belongs to this thread only.
   */
  offer(): WorldOffer | null {
    const { rank, size, name, timeout, hint, first } = this.options;
    const offer = this.store.offer?.();
    return offer === undefined ? null : { offer, rank, size, name, timeout, hint, first };
  }

  /** Returns the offered world; `job` is the offered job. */
  static take({ offer: _, ...options }: WorldOffer, job: Job): StoreWorld {
    return new StoreWorld(job, { ...options, check: () => job.check() });
  }

  /** Sends this rank's message of the next exchange without waiting for the others. */
  async announce(label: string, value: JsonValue): Promise<void> {
    await this.report(this.round++, { label, value, stood: null });
  }

  async exchange(label: string, value: JsonValue): Promise<JsonValue[]> {
    const round = this.round++;
    const messages = await this.exchangeMessages(round, label, value).catch((error) =>
      this.explain(error),
    );
    const missing = messages.flatMap((item, rank) => (item === null ? [rank] : []));
    if (missing.length > 0) throw absentError(label, missing, this.options);
    const other = messages.findIndex((item) => item?.label !== label);
    if (other >= 0)
      throw otherCallError(label, other, String(messages[other]?.label), this.options.hint);
    await this.forgetBefore(round).catch((error) => this.explain(error));
    return messages.map((item) => item?.value as JsonValue);
  }

  /**
   * Returns the message of every rank in this round, or null for a rank that did not arrive in
   * time.
   */
  private async exchangeMessages(
    round: number,
    label: string,
    value: JsonValue,
  ): Promise<(Message | null)[]> {
    const isCall = CALLS.has(label);
    const ownMessage: Message = { label, value, stood: isCall ? await this.arrive(round) : null };
    await this.report(round, ownMessage);
    const waiting = new RoundTimer(
      this.options.timeout,
      isCall ? () => this.reportAbsence(round, label) : null,
    );
    const messages: (Message | null)[] = [];
    for (let rank = 0; rank < this.size; ++rank) {
      messages.push(rank === this.rank ? ownMessage : await this.readMessage(round, rank, waiting));
    }
    const hasStandIn = messages.some((item) => (item?.stood ?? 0) > 0);
    if (hasStandIn && !waiting.hasStood) this.standIn?.(formatAbsence(label, this.rank, []));
    return messages;
  }

  /** Counts this rank as arrived at the call of `round`: see Message.stood. */
  private async arrive(round: number): Promise<number | null> {
    const count = await this.store.add?.(this.arrivalKey(round), 1);
    if (count === undefined || count % STANDING !== this.size) return null;
    this.ownKeys.set(round, [this.arrivalKey(round)]);
    return Math.floor(count / STANDING);
  }

  /** Stands in for this rank unless all ranks have arrived. Resolves with whether it did. */
  private async reportAbsence(round: number, label: string): Promise<boolean> {
    const { standIn } = this;
    if (!standIn || !this.store.add) return false;
    const count = await this.store.add(this.arrivalKey(round), STANDING);
    if (count % STANDING === this.size) return false;
    const missing: number[] = [];
    for (let rank = 0; rank < this.size; ++rank) {
      const isThere = await this.store.get(this.key(round, rank), 0).catch(() => null);
      if (isThere === null) missing.push(rank);
    }
    standIn(formatAbsence(label, this.rank, missing));
    return true;
  }

  /** Throws the failure of the job if it explains the error of the store, else `error`. */
  private async explain(error: unknown): Promise<never> {
    for (let waited = 0; waited < REASON_MS; waited += REQUEST_MS) {
      this.options.check();
      await pause(REQUEST_MS);
    }
    throw error;
  }

  private async report(round: number, message: JsonObject): Promise<void> {
    const text = JSON.stringify(message).replace(/[^ -~]/g, escapeUnit);
    const key = this.key(round, this.rank);
    const keys = [key];
    for (let i = 1; i * CHUNK < text.length; ++i) {
      keys.push(`${key}/${i}`);
      await this.store.set(`${key}/${i}`, text.slice(i * CHUNK, (i + 1) * CHUNK));
    }
    await this.store.set(key, `${keys.length}:${text.slice(0, CHUNK)}`);
    this.ownKeys.set(round, [...(this.ownKeys.get(round) ?? []), ...keys]);
  }

  private async readMessage(
    round: number,
    rank: number,
    waiting: RoundTimer,
  ): Promise<Message | null> {
    const key = this.key(round, rank);
    const first = await this.awaitKey(key, waiting);
    if (first === null) return null;
    const colon = first.indexOf(':');
    const texts = [first.slice(colon + 1)];
    for (let i = 1; i < Number(first.slice(0, colon)); ++i) {
      texts.push(await this.store.get(`${key}/${i}`, REQUEST_MS));
    }
    return JSON.parse(texts.join('')) as Message;
  }

  private async awaitKey(key: string, waiting: RoundTimer): Promise<string | null> {
    for (let wait = 0; ; wait = Math.min(wait + 1, 20)) {
      try {
        return await this.store.get(key, Math.min(wait, REQUEST_MS));
      } catch (error) {
        if (!(error instanceof DsError && error.got === 'no such key')) throw error;
      }
      this.options.check();
      if (waiting.isOver) return null;
      await waiting.standOnce();
      await pause(wait);
    }
  }

  /**
   * Deletes keys of earlier rounds. All ranks have read them, because all have arrived at this
   * round.
   */
  private async forgetBefore(round: number): Promise<void> {
    for (const [number, keys] of this.ownKeys) {
      if (number >= round) continue;
      for (const key of keys) await this.store.delete(key);
      this.ownKeys.delete(number);
    }
  }

  private key(round: number, rank: number): string {
    return `${this.roundKey(round)}/${rank}`;
  }

  private arrivalKey(round: number): string {
    return `${this.roundKey(round)}/arrived`;
  }

  private roundKey(round: number): string {
    const { name, first } = this.options;
    const at = round === 0 && first ? first : { name, number: round };
    return `${at.name}/${at.number}`;
  }
}

/** Measures how long a rank has waited for others in a round. */
class RoundTimer {
  hasStood = false;
  private readonly begin = Date.now();
  private hasAttempted = false;

  constructor(
    private readonly timeout: number,
    private readonly stand: (() => Promise<boolean>) | null,
  ) {}

  get isOver(): boolean {
    return Date.now() >= this.begin + this.timeout;
  }

  async standOnce(): Promise<void> {
    if (this.hasAttempted || !this.stand || Date.now() < this.begin + STAND_IN_MS) return;
    this.hasAttempted = true;
    this.hasStood = await this.stand();
  }
}

/** Returns the error text for ranks in a collective while this rank waits for them in a call. */
function formatAbsence(label: string, rank: number, missing: readonly number[]): string {
  const call = CALLS.get(label) ?? label;
  const others = missing.length === 1 ? `rank ${missing[0]}` : `ranks ${missing.join(', ')}`;
  return `rank ${rank} waits in ${call} for ${others}: ${call} must be called on all ranks`;
}

/** Escapes to ASCII, so that a chunk has one byte per character. */
function escapeUnit(unit: string): string {
  return `\\u${unit.charCodeAt(0).toString(16).padStart(4, '0')}`;
}

function absentError(
  label: string,
  ranks: readonly number[],
  { timeout, hint }: StoreWorldOptions,
): DsError {
  const who = ranks.length === 1 ? `rank ${ranks[0]}` : `ranks ${ranks.join(', ')}`;
  return new DsError({
    code: 'DS_COMM',
    op: label,
    expected: `every rank within ${timeout / 1000} s`,
    got: `no message from ${who}`,
    hint:
      hint ??
      'Call saveCheckpoint, loadCheckpoint and save16bitModel on every rank, not only on rank 0.',
  });
}

function otherCallError(label: string, rank: number, other: string, hint?: string): DsError {
  return new DsError({
    code: 'DS_COMM',
    op: label,
    expected: 'the same call on every rank',
    got: `"${other}" on rank ${rank}`,
    hint:
      hint ??
      'Every rank must save and load the same checkpoints in the same order. If that rank failed first, see its output.',
  });
}
