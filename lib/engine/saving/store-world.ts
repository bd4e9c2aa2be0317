// The ranks of a job as a checkpoint's world: they exchange JSON through the job's key-value store.
import { setTimeout as pause } from 'node:timers/promises';
import type { JsonObject, JsonValue } from '../../../types/json.js';
import {
  BEGIN_EXPORT,
  BEGIN_LOAD,
  BEGIN_SAVE,
  type CheckpointWorld,
} from '../../checkpoint/index.js';
import { DsError } from '../../errors.js';
import type { Job } from '../../runtime/job.js';

/** What is needed of a job's store. */
export interface TextStore {
  set(key: string, value: string): Promise<void>;
  /** Waits for the key; rejects with DS_COMM, got "no such key", after `timeout` milliseconds. */
  get(key: string, timeout: number): Promise<string>;
  delete(key: string): Promise<boolean>;
  /** Adds to a number (absent: 0); resolves with the sum. Without it no rank stands in. */
  add?(key: string, step: number): Promise<number>;
  /** Lets another thread take part: see Job.offer. */
  offer?(): number;
}

/** A place in a world, as plain data: what another thread needs to take it. */
export interface Seat extends Omit<StoreWorldOptions, 'check'> {
  /** Of the job. */
  offer: number;
}

export interface StoreWorldOptions {
  rank: number;
  size: number;
  /** What sets these exchanges apart from others in the store; the same on every rank. */
  name: string;
  /** Milliseconds until the other ranks must have come. */
  timeout: number;
  /** Throws what made the job fail, once it has: then no rank is waited for any more. */
  check: () => void;
  /** What to do where a rank does not come, or to another call. Default: that of checkpoints. */
  hint?: string;
  /** Where the first exchange takes place, if not here. */
  first?: Round;
}

/** A round of exchanges of a world. */
export interface Round {
  /** Of the world. */
  name: string;
  number: number;
}

/** The store's limit on one value is 4 MiB of bytes. */
const CHUNK = 2 ** 20;
/** Requests of one process wait for each other: none of them may wait for long. */
const PATIENCE_MS = 50;
/**
 * A store that breaks down is often the echo of a rank's death, of which the job learns by itself.
 */
const REASON_MS = 1000;

/** The calls that begin with these exchanges, which every rank must make. */
const CALLS: ReadonlyMap<string, string> = new Map([
  [BEGIN_SAVE, 'saveCheckpoint()'],
  [BEGIN_LOAD, 'loadCheckpoint()'],
  [BEGIN_EXPORT, 'save16bitModel()'],
]);
/** A rank that waits for others this long in a call stands in: see StoreWorld.standBy(). */
const STAND_IN_MS = 3000;
/** In the number that counts a call's ranks, each that stands in counts as so many. */
const STANDING = 2 ** 24;

/** What ranks say in one round. */
interface Message extends JsonObject {
  label: string;
  value: JsonValue;
  /** Of the last rank that came to a call: how many ranks had stood in by then; else null. */
  stood: number | null;
}

/**
 * Collectives need no part in this: a save that runs beside training disturbs no order of theirs.
 * Every rank makes the same exchanges in the same order.
 */
export class StoreWorld implements CheckpointWorld {
  readonly rank: number;
  readonly size: number;
  private round = 0;
  /** Keys of this rank that some rank may still have to read, by round. */
  private readonly kept = new Map<number, string[]>();
  private standIn: ((text: string) => void) | null = null;

  constructor(
    private readonly store: TextStore,
    private readonly options: StoreWorldOptions,
  ) {
    this.rank = options.rank;
    this.size = options.size;
  }

  /**
   * `standIn` puts an error in place of this rank's next collectives. A rank calls it with a text
   * where others do not come to a call: ranks that wait in a collective then fail at once with
   * DS_COMM. Where the others do come, every rank calls it, so all agree on their next collectives.
   */
  standBy(standIn: (text: string) => void): void {
    this.standIn = standIn;
  }

  /**
   * A world of the same ranks whose exchanges mix with no others but for the first, which is the
   * next one of this world: a rank that makes it, and one that goes on here, learn of each other.
   */
  beside(): StoreWorld {
    const first = { name: this.options.name, number: this.round++ };
    const name = `${first.name}/beside/${first.number}`;
    return new StoreWorld(this.store, { ...this.options, name, first });
  }

  /**
   * This world for another thread, which takes it once with at(). Null where the store is this
   * thread's alone.
   */
  seat(): Seat | null {
    const { rank, size, name, timeout, hint, first } = this.options;
    const offer = this.store.offer?.();
    return offer === undefined ? null : { offer, rank, size, name, timeout, hint, first };
  }

  /** The world of a seat; `job` is the one that was offered. */
  static at({ offer: _, ...seat }: Seat, job: Job): StoreWorld {
    return new StoreWorld(job, { ...seat, check: () => job.check() });
  }

  /** This rank's part of the next exchange; those of the others are not waited for. */
  async announce(label: string, value: JsonValue): Promise<void> {
    await this.report(this.round++, { label, value, stood: null });
  }

  async exchange(label: string, value: JsonValue): Promise<JsonValue[]> {
    const round = this.round++;
    const said = await this.meet(round, label, value).catch((error) => this.explain(error));
    const missing = said.flatMap((one, rank) => (one === null ? [rank] : []));
    if (missing.length > 0) throw absent(label, missing, this.options);
    const other = said.findIndex((one) => one?.label !== label);
    if (other >= 0) throw elsewhere(label, other, String(said[other]?.label), this.options.hint);
    await this.forgetBefore(round).catch((error) => this.explain(error));
    return said.map((one) => one?.value as JsonValue);
  }

  /** What every rank says in this round, by rank; null where one did not come in time. */
  private async meet(round: number, label: string, value: JsonValue): Promise<(Message | null)[]> {
    const isCall = CALLS.has(label);
    const own: Message = { label, value, stood: isCall ? await this.arrive(round) : null };
    await this.report(round, own);
    const waiting = new Waiting(
      this.options.timeout,
      isCall ? () => this.stand(round, label) : null,
    );
    const said: (Message | null)[] = [];
    for (let rank = 0; rank < this.size; ++rank) {
      said.push(rank === this.rank ? own : await this.ask(round, rank, waiting));
    }
    const isStoodIn = said.some((one) => (one?.stood ?? 0) > 0);
    if (isStoodIn && !waiting.hasStood) this.standIn?.(textOf(label, this.rank, []));
    return said;
  }

  /** Counts this rank among those that have come to the call of `round`: see Message.stood. */
  private async arrive(round: number): Promise<number | null> {
    const count = await this.store.add?.(this.arrivalKey(round), 1);
    if (count === undefined || count % STANDING !== this.size) return null;
    this.kept.set(round, [this.arrivalKey(round)]);
    return Math.floor(count / STANDING);
  }

  /** Stands in for this rank unless all have come. Resolves with whether it has. */
  private async stand(round: number, label: string): Promise<boolean> {
    const { standIn } = this;
    if (!standIn || !this.store.add) return false;
    const count = await this.store.add(this.arrivalKey(round), STANDING);
    if (count % STANDING === this.size) return false;
    const missing: number[] = [];
    for (let rank = 0; rank < this.size; ++rank) {
      const isThere = await this.store.get(this.key(round, rank), 0).catch(() => null);
      if (isThere === null) missing.push(rank);
    }
    standIn(textOf(label, this.rank, missing));
    return true;
  }

  /** Throws the job's failure where that is why the store does not answer, else `error`. */
  private async explain(error: unknown): Promise<never> {
    for (let waited = 0; waited < REASON_MS; waited += PATIENCE_MS) {
      this.options.check();
      await pause(PATIENCE_MS);
    }
    throw error;
  }

  private async report(round: number, message: JsonObject): Promise<void> {
    const text = JSON.stringify(message).replace(/[^ -~]/g, escaped);
    const key = this.key(round, this.rank);
    const keys = [key];
    for (let i = 1; i * CHUNK < text.length; ++i) {
      keys.push(`${key}/${i}`);
      await this.store.set(`${key}/${i}`, text.slice(i * CHUNK, (i + 1) * CHUNK));
    }
    await this.store.set(key, `${keys.length}:${text.slice(0, CHUNK)}`);
    this.kept.set(round, [...(this.kept.get(round) ?? []), ...keys]);
  }

  private async ask(round: number, rank: number, waiting: Waiting): Promise<Message | null> {
    const key = this.key(round, rank);
    const first = await this.awaitKey(key, waiting);
    if (first === null) return null;
    const colon = first.indexOf(':');
    const texts = [first.slice(colon + 1)];
    for (let i = 1; i < Number(first.slice(0, colon)); ++i) {
      texts.push(await this.store.get(`${key}/${i}`, PATIENCE_MS));
    }
    return JSON.parse(texts.join('')) as Message;
  }

  private async awaitKey(key: string, waiting: Waiting): Promise<string | null> {
    for (let wait = 0; ; wait = Math.min(wait + 1, 20)) {
      try {
        return await this.store.get(key, Math.min(wait, PATIENCE_MS));
      } catch (error) {
        if (!(error instanceof DsError && error.got === 'no such key')) throw error;
      }
      this.options.check();
      if (waiting.isOver) return null;
      await waiting.standOnce();
      await pause(wait);
    }
  }

  /** Whoever has come to a round has read all of those before it. */
  private async forgetBefore(round: number): Promise<void> {
    for (const [number, keys] of this.kept) {
      if (number >= round) continue;
      for (const key of keys) await this.store.delete(key);
      this.kept.delete(number);
    }
  }

  private key(round: number, rank: number): string {
    return `${this.place(round)}/${rank}`;
  }

  private arrivalKey(round: number): string {
    return `${this.place(round)}/arrived`;
  }

  private place(round: number): string {
    const { name, first } = this.options;
    const at = round === 0 && first ? first : { name, number: round };
    return `${at.name}/${at.number}`;
  }
}

/** How long a rank has waited for others in a round. */
class Waiting {
  /** This rank stands in. */
  hasStood = false;
  private readonly begin = Date.now();
  private hasTried = false;

  constructor(
    private readonly timeout: number,
    private readonly stand: (() => Promise<boolean>) | null,
  ) {}

  get isOver(): boolean {
    return Date.now() >= this.begin + this.timeout;
  }

  async standOnce(): Promise<void> {
    if (this.hasTried || !this.stand || Date.now() < this.begin + STAND_IN_MS) return;
    this.hasTried = true;
    this.hasStood = await this.stand();
  }
}

/** What ranks in a collective learn of a rank that waits for them in a call. */
function textOf(label: string, rank: number, missing: readonly number[]): string {
  const call = CALLS.get(label) as string;
  const others = missing.length === 1 ? `rank ${missing[0]}` : `ranks ${missing.join(', ')}`;
  return `rank ${rank} waits in ${call} for ${others}: ${call} must be called on all ranks`;
}

/** ASCII only: a chunk then has as many bytes as characters, and no character lies in two. */
function escaped(unit: string): string {
  return `\\u${unit.charCodeAt(0).toString(16).padStart(4, '0')}`;
}

function absent(
  label: string,
  ranks: readonly number[],
  { timeout, hint }: StoreWorldOptions,
): DsError {
  const who = ranks.length === 1 ? `rank ${ranks[0]}` : `ranks ${ranks.join(', ')}`;
  return new DsError({
    code: 'DS_COMM',
    op: label,
    expected: `every rank within ${timeout / 1000} s`,
    got: `nothing from ${who}`,
    hint:
      hint ??
      'Every rank must call saveCheckpoint, loadCheckpoint and save16bitModel, not rank 0 alone.',
  });
}

function elsewhere(label: string, rank: number, other: string, hint?: string): DsError {
  return new DsError({
    code: 'DS_COMM',
    op: label,
    expected: 'the same call on every rank',
    got: `"${other}" on rank ${rank}`,
    hint:
      hint ??
      'Every rank must save and load the same checkpoints in the same order. Where that rank failed first, its own output says why.',
  });
}
