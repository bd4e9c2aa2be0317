// StoreWorld: the ranks of a job exchange JSON through the key-value store of the job. Saves, loads
// and engine setup use it.

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
 * Returns the world of the job's ranks, for checkpoints. `hint` is the fix in the error for a
 * missing rank. Default: the hint for an engine's checkpoints.
 */
export function checkpointWorld(job: Distributed, hint?: string): CheckpointWorld {
  if (!job.store) return soloWorld;
  // Ranks build engines in the same order, so the names are equal on all ranks.
  const name = job.nextName('checkpoint');
  const { rank, worldSize: size, store, timeout, world } = job;
  return new StoreWorld(store, { rank, size, name, timeout, check: () => world.check(), hint });
}

/** The methods of the job's store that a world uses. */
export interface TextStore {
  set(key: string, value: string): Promise<void>;
  /** Waits for a key. After `timeout` milliseconds, rejects with DS_COMM, got "no such key". */
  get(key: string, timeout: number): Promise<string>;
  delete(key: string): Promise<boolean>;
  /**
   * Adds `step` to a number, which starts at 0. Resolves with the sum. Optional: without it, a
   * world reports no absences.
   */
  add?(key: string, step: number): Promise<number>;
  /** Offers the store to another thread: see Job.offer(). */
  offer?(): number;
}

/** Plain data for another thread that joins the world. */
export interface WorldOffer extends Omit<StoreWorldOptions, 'check'> {
  /** The offer of the store. */
  offer: number;
}

interface StoreWorldOptions {
  rank: number;
  size: number;
  /** Prefix of this world's keys in the store, equal on every rank. */
  name: string;
  /** Milliseconds that this rank waits for other ranks in an exchange. */
  timeout: number;
  /** Throws the failure of the job if there is one. A rank then stops waiting. */
  check: () => void;
  /**
   * Hint of the error if a rank is missing, or makes another call. Default: the hint for
   * checkpoints.
   */
  hint?: string;
  /** Key of the first exchange. Default: the first key of this world. */
  first?: Round;
}

/** An exchange of a world. */
interface Round {
  name: string;
  number: number;
}

/** Characters per value. The store accepts at most 4 MiB per value. */
const CHUNK = 2 ** 20;
/** Longest wait of one request, in milliseconds. Requests of a process run one after another. */
const REQUEST_MS = 50;
/**
 * When a rank dies, the store often fails before the job reports the death. The report arrives
 * within this time.
 */
const REASON_MS = 1000;

/** By label of their first exchange: the calls that every rank must make. */
const CALLS: ReadonlyMap<string, string> = new Map([
  [BEGIN_SAVE, 'saveCheckpoint()'],
  [BEGIN_LOAD, 'loadCheckpoint()'],
  [BEGIN_EXPORT, 'save16bitModel()'],
]);
/** After this wait in a call, a rank reports the absence of others: see StoreWorld.onAbsence(). */
const ABSENCE_MS = 3000;
/**
 * The arrival counter adds this for each rank that reports an absence, and 1 for each rank that
 * arrives.
 */
const ABSENCE = 2 ** 24;

/** The message of a rank in one exchange. */
interface Message extends JsonObject {
  label: string;
  value: JsonValue;
  /**
   * Number of ranks that reported an absence before. Only the message of the last rank to arrive at
   * a call has it; else null.
   */
  absenceReports: number | null;
}

/**
 * Exchanges JSON between the ranks without collectives, so a background save does not disturb the
 * order of collectives. Every rank must make the same exchanges in the same order.
 */
export class StoreWorld implements CheckpointWorld {
  readonly rank: number;
  readonly size: number;
  private round = 0;
  /** By exchange: keys of this rank that other ranks may still read. */
  private readonly ownKeys = new Map<number, string[]>();
  private failCollectives: ((text: string) => void) | null = null;

  constructor(
    private readonly store: TextStore,
    private readonly options: StoreWorldOptions,
  ) {
    this.rank = options.rank;
    this.size = options.size;
  }

  /**
   * Sets the function that puts an error in place of this rank's next collectives. If others do not
   * arrive at a call, a waiting rank calls it. Ranks that wait in a collective then fail at once
   * with DS_COMM. If the others arrive after all, every rank calls it, so that all ranks agree on
   * their next collectives.
   */
  onAbsence(failCollectives: (text: string) => void): void {
    this.failCollectives = failCollectives;
  }

  /**
   * Returns a world of the same ranks with separate exchanges. Its first exchange has the key of
   * this world's next one. If one rank makes it and another rank continues here, both therefore
   * detect the difference.
   */
  beside(): StoreWorld {
    const first = { name: this.options.name, number: this.round++ };
    const name = `${first.name}/beside/${first.number}`;
    return new StoreWorld(this.store, { ...this.options, name, first });
  }

  /**
   * Offers this world to another thread, which joins once with take(). Returns null if only this
   * thread can use the store.
   */
  offer(): WorldOffer | null {
    const { rank, size, name, timeout, hint, first } = this.options;
    const offer = this.store.offer?.();
    return offer === undefined ? null : { offer, rank, size, name, timeout, hint, first };
  }

  /** Joins an offered world. `job` is the offered store. */
  static take({ offer: _, ...options }: WorldOffer, job: Job): StoreWorld {
    return new StoreWorld(job, { ...options, check: () => job.check() });
  }

  /** Sends this rank's message of the next exchange. Does not wait for other ranks. */
  async announce(label: string, value: JsonValue): Promise<void> {
    await this.report(this.round++, { label, value, absenceReports: null });
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
   * Returns the message of every rank in this exchange. It is null for a rank that did not arrive
   * in time.
   */
  private async exchangeMessages(
    round: number,
    label: string,
    value: JsonValue,
  ): Promise<(Message | null)[]> {
    const isCall = CALLS.has(label);
    const ownMessage: Message = {
      label,
      value,
      absenceReports: isCall ? await this.arrive(round) : null,
    };
    await this.report(round, ownMessage);
    const waiting = new RoundTimer(
      this.options.timeout,
      isCall ? () => this.reportAbsence(round, label) : null,
    );
    const messages: (Message | null)[] = [];
    for (let rank = 0; rank < this.size; ++rank) {
      messages.push(rank === this.rank ? ownMessage : await this.readMessage(round, rank, waiting));
    }
    const isReported = messages.some((item) => (item?.absenceReports ?? 0) > 0);
    if (isReported && !waiting.hasReported)
      this.failCollectives?.(formatAbsence(label, this.rank, []));
    return messages;
  }

  /** Counts this rank as arrived at a call. Returns Message.absenceReports. */
  private async arrive(round: number): Promise<number | null> {
    const count = await this.store.add?.(this.arrivalKey(round), 1);
    if (count === undefined || count % ABSENCE !== this.size) return null;
    this.ownKeys.set(round, [this.arrivalKey(round)]);
    return Math.floor(count / ABSENCE);
  }

  /** Reports an absence, unless all ranks have arrived. Resolves with whether it did. */
  private async reportAbsence(round: number, label: string): Promise<boolean> {
    const { failCollectives } = this;
    if (!failCollectives || !this.store.add) return false;
    const count = await this.store.add(this.arrivalKey(round), ABSENCE);
    if (count % ABSENCE === this.size) return false;
    const missing: number[] = [];
    for (let rank = 0; rank < this.size; ++rank) {
      const isThere = await this.store.get(this.key(round, rank), 0).catch(() => null);
      if (isThere === null) missing.push(rank);
    }
    failCollectives(formatAbsence(label, this.rank, missing));
    return true;
  }

  /** Throws the failure of the job if it explains the error of the store. Else throws `error`. */
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
      await waiting.reportOnce();
      await pause(wait);
    }
  }

  /**
   * Deletes this rank's keys of earlier exchanges. All ranks have arrived at this exchange, so they
   * have read these keys.
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

/** Measures how long this rank has waited in an exchange. */
class RoundTimer {
  hasReported = false;
  private readonly begin = Date.now();
  private hasAttempted = false;

  constructor(
    private readonly timeout: number,
    private readonly report: (() => Promise<boolean>) | null,
  ) {}

  get isOver(): boolean {
    return Date.now() >= this.begin + this.timeout;
  }

  async reportOnce(): Promise<void> {
    if (this.hasAttempted || !this.report || Date.now() < this.begin + ABSENCE_MS) return;
    this.hasAttempted = true;
    this.hasReported = await this.report();
  }
}

/**
 * Returns the error for ranks that wait in a collective while this rank waits for them in a call.
 */
function formatAbsence(label: string, rank: number, missing: readonly number[]): string {
  const call = CALLS.get(label) ?? label;
  const others = missing.length === 1 ? `rank ${missing[0]}` : `ranks ${missing.join(', ')}`;
  return `rank ${rank} waits in ${call} for ${others}: ${call} must be called on all ranks`;
}

/** Escapes a character to ASCII. A chunk then has one byte per character. */
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
