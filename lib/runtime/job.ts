// Stores, jobs and process groups: the addon's functions for work on several ranks.
import { DsError } from '../errors.js';
import { addon, block } from './addon.js';
import type { Device } from './device.js';
import { dtypeCode, dtypeSize } from './dtype.js';
import { awaitNative, native } from './native.js';
import { Event, type Stream } from './stream.js';
import { describe, isContiguous, type View } from './view.js';

/** The order is that of ds::comm::Kind in csrc/comm/engine.h. */
export const collectiveKinds = [
  'allReduce',
  'reduceScatter',
  'allGather',
  'broadcast',
  'reduce',
  'allToAll',
  'send',
  'recv',
  'barrier',
] as const;

/** The collectives and messages that a process group can issue. */
export type CollectiveKind = (typeof collectiveKinds)[number];

/** The order is that of ds::comm::ReduceOp. */
const reduceOps = ['sum', 'avg', 'min', 'max', 'prod'] as const;

/**
 * How a collective combines the ranks' contributions, element by element; avg is the sum divided by
 * the ranks.
 */
export type ReduceOp = (typeof reduceOps)[number];

/** The address of a job's store, and its secret. */
export interface StoreAddress {
  host: string;
  port: number;
  secret: string;
}

/** The key-value store of a job, served by this process on a separate thread. */
export class StoreServer {
  private readonly handle: number;

  /**
   * Listens on exactly `host`; port 0 takes a free one. Throws DS_COMM if the port is in use, or
   * the address belongs to another host.
   */
  constructor(at: StoreAddress) {
    this.handle = native(() => addon.startStore(at.host, at.port, at.secret));
  }

  get port(): number {
    return native(() => addon.storePort(this.handle));
  }

  stop(): void {
    native(() => addon.stopStore(this.handle));
  }
}

interface JobOptions {
  store: StoreAddress;
  rank: number;
  worldSize: number;
  /** Timeout of joining and of each collective, in milliseconds. */
  timeout: number;
}

/**
 * One rank's membership in a job. After its first failure (DS_COMM), every later call that checks
 * throws the same error.
 */
export class Job {
  private constructor(private readonly handle: number) {}

  /**
   * Resolves when the store has accepted this rank. Waits for the store to start. Rejects with
   * DS_COMM.
   */
  static async join(options: JobOptions): Promise<Job> {
    const { store, timeout } = options;
    const rankAndSize = Int32Array.of(options.rank, options.worldSize);
    return new Job(
      await awaitNative(() =>
        addon.joinJob(store.host, store.port, store.secret, rankAndSize, timeout),
      ),
    );
  }

  /**
   * Ends this rank's collectives, waits until every rank has called leave(), and closes the
   * connections. Before it resolves, it waits at most `storeEnd` milliseconds for the end of the
   * store: otherwise a rank of the next job at the same address could join the old store.
   */
  async leave(storeEnd = 0): Promise<void> {
    await awaitNative(() => addon.leaveJob(this.handle));
    // Nobody sets this key, so the request ends with the store.
    if (storeEnd > 0 && !this.hasFailed()) await this.get('never set', storeEnd).catch(() => {});
    this.close();
  }

  private hasFailed(): boolean {
    try {
      this.check();
      return false;
    } catch {
      return true;
    }
  }

  /** Closes at once; ranks that still wait for this rank receive an error. */
  close(): void {
    native(() => addon.closeJob(this.handle));
  }

  /** Throws the failure of the job if it has failed. */
  check(): void {
    native(() => addon.checkJob(this.handle));
  }

  /**
   * Returns an offer number: another thread passes it to take() once to share this job. leave()
   * waits until that thread ends.
   */
  offer(): number {
    return native(() => addon.offerJob(this.handle));
  }

  /**
   * Returns the job of another thread: this thread may use its store, and the other thread leaves
   * it.
   */
  static take(offer: number): Job {
    return new Job(native(() => addon.takeJob(offer)));
  }

  /** Releases an offer, taken or not. */
  static withdraw(offer: number): void {
    native(() => addon.withdrawJob(offer));
  }

  /** Sets the text of a key. All requests to the store reject with DS_COMM. */
  set(key: string, value: string): Promise<void> {
    return awaitNative(() => addon.storeSet(this.handle, key, value));
  }

  /** Waits until the key exists, at most `timeout` milliseconds. */
  get(key: string, timeout: number): Promise<string> {
    return awaitNative(() => addon.storeGet(this.handle, key, timeout));
  }

  /** Adds `step` to the number of a key (0 if absent); resolves with the sum. */
  add(key: string, step: number): Promise<number> {
    return awaitNative(() => addon.storeAdd(this.handle, key, step));
  }

  /**
   * Sets the key to `desired` if it is `expected` (absent: ''); resolves with the value afterwards.
   */
  compareSet(key: string, expected: string, desired: string): Promise<string> {
    return awaitNative(() => addon.storeCompareSet(this.handle, key, expected, desired));
  }

  delete(key: string): Promise<boolean> {
    return awaitNative(() => addon.storeDelete(this.handle, key));
  }

  async keys(prefix = ''): Promise<string[]> {
    const lines = await awaitNative(() => addon.storeKeys(this.handle, prefix));
    return lines.split('\n').filter(Boolean).sort();
  }

  /** Resolves with the number of ranks that wait for the key. */
  waiters(key: string): Promise<number> {
    return awaitNative(() => addon.storeWaiters(this.handle, key));
  }

  /**
   * Opens a group of two or more ranks; every member must call it with the same name and ranks.
   * Rejects with DS_COMM, or DS_LIBRARY if the device's collectives are not installed.
   */
  async openGroup(
    name: string,
    ranks: readonly number[],
    rank: number,
    device: Device,
  ): Promise<GroupHandle> {
    const stream = device.compute.handle;
    const list = Int32Array.from(ranks);
    return new GroupHandle(
      await awaitNative(() => addon.openGroup(this.handle, stream, name, list, rank)),
    );
  }
}

/** One collective of this rank. `count` is in elements per rank and row: see csrc/comm/engine.h. */
export interface Collective {
  kind: CollectiveKind;
  op: ReduceOp;
  input: View | null;
  output: View | null;
  count: number;
  /** Number of rows in input and output; above 1 only for reduceScatter and allGather. */
  rows: number;
  /** The root, or the other rank of a message, as a rank of the group. */
  peer: number;
  /**
   * Description of the data. Ranks with different purposes fail, as ranks with different ops do.
   * May be empty.
   */
  purpose: string;
}

/** Collectives in flight, identified by tickets. */
export interface Tickets {
  start(call: Collective, stream: Stream, label: string): number;
  /**
   * Makes later work of `stream` wait for the collective. Blocks on the CPU, where streams run work
   * at once.
   */
  wait(ticket: number, stream: Stream): void;
  synchronize(ticket: number): void;
  done(ticket: number): boolean;
  /** Reports `error` to the group in place of this rank's next collective. */
  giveUp(error: string): void;
}

/**
 * Returns the handle of an operand; 0 for null and for a released operand, which the addon reports.
 */
function handleOf(view: View | null): number {
  return view === null ? 0 : view.buffer.handle || -1;
}

/** A native group. After the job's first failure, every method throws this failure. */
export class GroupHandle implements Tickets {
  constructor(private readonly handle: number) {}

  start(call: Collective, stream: Stream, label: string): number {
    const dtype = (call.input ?? call.output)?.dtype ?? 'u8';
    // Reading a handle may run ops, and their arguments pass through the block.
    const [input, output] = [handleOf(call.input), handleOf(call.output)];
    block[0] = collectiveKinds.indexOf(call.kind);
    block[1] = reduceOps.indexOf(call.op);
    block[2] = dtypeCode(dtype);
    block[3] = call.count;
    block[4] = call.peer;
    block[5] = input;
    block[6] = call.input?.offset ?? 0;
    block[7] = output;
    block[8] = call.output?.offset ?? 0;
    block[9] = call.rows;
    return native(() => addon.startCollective(this.handle, stream.handle, call.purpose, label));
  }

  wait(ticket: number, stream: Stream): void {
    native(() => addon.waitCollective(this.handle, ticket, stream.handle));
  }

  synchronize(ticket: number): void {
    native(() => addon.synchronizeCollective(this.handle, ticket));
  }

  done(ticket: number): boolean {
    return native(() => addon.collectiveDone(this.handle, ticket));
  }

  giveUp(error: string): void {
    native(() => addon.giveUpCollective(this.handle, error));
  }
}

/**
 * The end events of the collectives of single-rank groups. All such groups share the numbers of
 * tickets, and each call of a group frees finished events.
 */
const ends = new Map<number, Event>();
let lastTicket = 0;

/** Frees finished events, oldest first. */
function freeFinished(): void {
  for (const [ticket, end] of ends) {
    if (!end.done) return;
    ends.delete(ticket);
    end.dispose();
  }
}

/** A group of only this rank: a collective is at most a copy, in the order of its stream. */
export class SoloGroup implements Tickets {
  start({ input, output, count, rows }: Collective, stream: Stream): number {
    freeFinished();
    const size = dtypeSize(input?.dtype ?? 'u8');
    const to = (output?.offset ?? 0) * size;
    const from = (input?.offset ?? 0) * size;
    const isThere = input?.buffer === output?.buffer && to === from;
    if (input && output && count > 0 && !isThere) {
      output.buffer.copyFrom(input.buffer, { to, from, bytes: count * rows * size }, stream);
    }
    ends.set(++lastTicket, new Event(stream.device).record(stream));
    return lastTicket;
  }

  wait(ticket: number, stream: Stream): void {
    const end = ends.get(ticket);
    if (end) stream.wait(end);
    freeFinished();
  }

  synchronize(ticket: number): void {
    ends.get(ticket)?.synchronize();
    freeFinished();
  }

  done(ticket: number): boolean {
    freeFinished();
    return ends.get(ticket)?.done ?? true;
  }

  giveUp(): void {}
}

/** Throws DS_SHAPE unless the collective can use `view` as one range of memory. */
export function requireFlat(op: string, view: View): void {
  if (isContiguous(view)) return;
  throw new DsError({
    code: 'DS_SHAPE',
    op,
    expected: 'a contiguous tensor',
    got: `${describe(view)} with strides [${view.strides.join(', ')}]`,
    hint: 'Use .contiguous() first.',
  });
}
