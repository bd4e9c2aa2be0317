// Deferred calls: they wait until their results are needed, so that the unneeded end of a replay
// never runs.
import { required } from './required.js';

/** Memory that calls read and write: a Buffer (buffer.ts). Any use of it ends the deferral. */
interface Operand {
  retain(): unknown;
  release(): void;
  /** Marks that the buffer will never be written. */
  abandon(): void;
}

/** A deferred call. Deferred calls run in the order of creation. */
interface DeferredCall {
  readonly run: () => void;
  /** Held until it has run. */
  readonly operands: readonly Operand[];
}

/** Largest number of deferred calls: they hold memory. */
const LIMIT = 64;

/**
 * A queue of calls. An op with unwritten output memory writes only that memory, so it can wait.
 * Every other call changes visible state: it runs at once, after all earlier calls.
 */
class Row {
  private waiting: DeferredCall[] = [];
  /** Calls that have left the row. */
  private gone = 0;
  /** Operands of the call that is being prepared. */
  private operands: Operand[] = [];
  private readonly blank = new Set<Operand>();
  /** The number of the call that writes it last. */
  private readonly writers = new Map<Operand, number>();
  /** Memory that the call being prepared adds to. */
  private amended: Operand | null = null;

  noteAllocated(buffer: Operand): void {
    this.blank.add(buffer);
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
    const written = operands.filter((buffer) => this.blank.delete(buffer) || this.amend(buffer));
    for (const buffer of operands) buffer.retain();
    this.waiting.push({ run, operands });
    const number = this.gone + this.waiting.length;
    for (const buffer of written) this.writers.set(buffer, number);
    if (!mayWait || written.length === 0 || this.waiting.length > LIMIT) this.runAll();
  }

  /** Returns whether the call adds to `buffer`, and the call that writes it still waits. */
  private amend(buffer: Operand): boolean {
    if (buffer !== this.amended) return false;
    this.amended = null;
    return (this.writers.get(buffer) ?? 0) > this.gone;
  }

  need(buffer: Operand): void {
    const last = this.writers.get(buffer);
    if (last !== undefined) this.runTo(last);
  }

  runAll(): void {
    this.runTo(this.gone + this.waiting.length);
  }

  /** Drops the deferred calls: their results will never be read. */
  drop(): void {
    for (const [buffer, number] of this.writers) if (number > this.gone) buffer.abandon();
    for (const call of this.waiting.splice(0)) releaseOperands(call);
  }

  private runTo(number: number): void {
    while (this.gone < number) {
      const call = required(this.waiting.shift());
      this.gone++;
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

let row: Row | null = null;

/** Returns the open queue of calls; null outside of postponeCalls(). */
export function openRow(): Row | null {
  return row;
}

/**
 * Runs `body` with deferred calls. They run when noteNeeded() names one of their results, when
 * memory or stream order is used in another way (a copy, a host read, a collective, an event), or
 * when a call cannot wait. Calls that still wait when `body` ends never run, and reading their
 * results throws DS_RELEASED.
 */
export function postponeCalls<T>(body: () => T): T {
  const outer = row;
  const ownRow = new Row();
  row = ownRow;
  try {
    return body();
  } finally {
    row = outer;
    ownRow.drop();
  }
}

/** Runs all deferred calls, then `body` without deferral. */
export function promptly<T>(body: () => T): T {
  const outer = row;
  if (outer === null) return body();
  outer.runAll();
  row = null;
  try {
    return body();
  } finally {
    row = outer;
  }
}

/**
 * The next call that uses `buffer` adds to its values and writes nothing else. It can wait if the
 * call that writes these values waits.
 */
export function markAmended(buffer: Operand): void {
  if (row !== null) row.amends(buffer);
}

/** Runs the calls that fill `buffer`, because it will be read. */
export function noteNeeded(buffer: Operand): void {
  if (row !== null) row.need(buffer);
}

/** Runs all deferred calls, because the device's work so far will be used or ordered. */
export function runPostponed(): void {
  if (row !== null) row.runAll();
}
