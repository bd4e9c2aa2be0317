// Deferred calls: they wait until their results are needed, so that the unneeded end of a replay
// never runs.
import { required } from './required.js';

/** Memory that calls read and write: a Buffer (buffer.ts). */
interface Operand {
  retain(): unknown;
  release(): void;
  /** Marks that the buffer will never be written. */
  abandon(): void;
}

/** A deferred call. Deferred calls run in the order of creation. */
interface DeferredCall {
  readonly run: () => void;
  /** The memory of its arguments, with a reference to each until the call has run. */
  readonly operands: readonly Operand[];
}

/** Largest number of deferred calls, because each keeps the memory of its arguments. */
const LIMIT = 64;

/**
 * A queue of calls. An op with unwritten output memory writes only that memory, so it can wait.
 * Every other call changes visible state: it runs at once, after all earlier calls.
 */
class CallQueue {
  private waiting: DeferredCall[] = [];
  /** Number of calls that have run. */
  private finished = 0;
  /** Operands of the call that is being prepared. */
  private operands: Operand[] = [];
  /** Memory that was allocated and that no call has written yet. */
  private readonly unwritten = new Set<Operand>();
  /** For each memory, the number of the last call that writes it. */
  private readonly writers = new Map<Operand, number>();
  /** The call that is being prepared adds to this memory. Null: it adds to none. */
  private amended: Operand | null = null;

  noteAllocated(buffer: Operand): void {
    this.unwritten.add(buffer);
  }

  operand(buffer: Operand): void {
    this.operands.push(buffer);
  }

  amends(buffer: Operand): void {
    this.amended = buffer;
  }

  /** Adds the next call; its operands have been registered. */
  add(run: () => void, mayWait: boolean): void {
    const operands = this.operands;
    this.operands = [];
    const written = operands.filter(
      (buffer) => this.unwritten.delete(buffer) || this.amend(buffer),
    );
    for (const buffer of operands) buffer.retain();
    this.waiting.push({ run, operands });
    const number = this.finished + this.waiting.length;
    for (const buffer of written) this.writers.set(buffer, number);
    if (!mayWait || written.length === 0 || this.waiting.length > LIMIT) this.runAll();
  }

  /** Returns whether the call adds to `buffer`, and the call that writes it still waits. */
  private amend(buffer: Operand): boolean {
    if (buffer !== this.amended) return false;
    this.amended = null;
    return (this.writers.get(buffer) ?? 0) > this.finished;
  }

  need(buffer: Operand): void {
    const last = this.writers.get(buffer);
    if (last !== undefined) this.runTo(last);
  }

  runAll(): void {
    this.runTo(this.finished + this.waiting.length);
  }

  /** Drops the deferred calls: their results will never be read. */
  drop(): void {
    for (const [buffer, number] of this.writers) if (number > this.finished) buffer.abandon();
    for (const call of this.waiting.splice(0)) releaseOperands(call);
  }

  private runTo(number: number): void {
    while (this.finished < number) {
      const call = required(this.waiting.shift());
      this.finished++;
      try {
        call.run();
      } finally {
        releaseOperands(call);
      }
    }
  }
}

function releaseOperands({ operands }: DeferredCall): void {
  for (const buffer of operands) buffer.release();
}

let queue: CallQueue | null = null;

/** Returns the open queue of calls; null outside of deferCalls(). */
export function openQueue(): CallQueue | null {
  return queue;
}

/**
 * Runs `body` with deferred calls. They run when runCallsFor() names one of their results, before
 * any other use of memory or of the stream order (a copy, a host read, a collective, an event), and
 * before a call that cannot wait. Calls that still wait when `body` ends never run, and reading
 * their results throws DS_RELEASED.
 */
export function deferCalls<T>(body: () => T): T {
  const outer = queue;
  const ownQueue = new CallQueue();
  queue = ownQueue;
  try {
    return body();
  } finally {
    queue = outer;
    ownQueue.drop();
  }
}

/** Runs all deferred calls, then `body` without deferral. */
export function promptly<T>(body: () => T): T {
  const outer = queue;
  if (outer === null) return body();
  outer.runAll();
  queue = null;
  try {
    return body();
  } finally {
    queue = outer;
  }
}

/**
 * Declares that the next call with the argument `buffer` adds to its values and writes nothing
 * else. The call is deferred if the call that writes these values is.
 */
export function markAmended(buffer: Operand): void {
  if (queue !== null) queue.amends(buffer);
}

/** Runs the deferred calls that write `buffer`, because the caller will read it. */
export function runCallsFor(buffer: Operand): void {
  if (queue !== null) queue.need(buffer);
}

/** Runs all deferred calls, because the caller depends on all earlier work of the device. */
export function runDeferred(): void {
  if (queue !== null) queue.runAll();
}
