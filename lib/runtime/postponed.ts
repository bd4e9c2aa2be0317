// Calls that wait until something needs what they write, so that the end of a replay, which nothing
// needs, never runs.

/** Memory that calls read and write: a Buffer (buffer.ts), whose uses end the waiting. */
export interface Operand {
  retain(): unknown;
  release(): void;
  /** Nobody will write it. */
  abandon(): void;
}

/** Calls wait in the order in which they were made, and run in that order. */
interface Waiting {
  readonly run: () => void;
  /** Held until it has run. */
  readonly operands: readonly Operand[];
}

/** So many wait at most: what they hold is memory. */
const LIMIT = 64;

/**
 * One row of calls. An op given memory that nobody has written yet writes that memory, and nothing
 * else: such a call can wait. Every other call changes what others may see; it runs at once, after
 * all before it.
 */
class Row {
  private waiting: Waiting[] = [];
  /** Calls that have left the row. */
  private gone = 0;
  /** Of the call that is being prepared. */
  private operands: Operand[] = [];
  private readonly blank = new Set<Operand>();
  /** The number of the call that writes it. */
  private readonly writers = new Map<Operand, number>();

  allocated(buffer: Operand): void {
    this.blank.add(buffer);
  }

  operand(buffer: Operand): void {
    this.operands.push(buffer);
  }

  /** The next call, whose operands have been named. */
  add(run: () => void, mayWait: boolean): void {
    const operands = this.operands;
    this.operands = [];
    const written = operands.filter((buffer) => this.blank.delete(buffer));
    for (const buffer of operands) buffer.retain();
    this.waiting.push({ run, operands });
    const number = this.gone + this.waiting.length;
    for (const buffer of written) this.writers.set(buffer, number);
    if (!mayWait || written.length === 0 || this.waiting.length > LIMIT) this.runAll();
  }

  need(buffer: Operand): void {
    const last = this.writers.get(buffer);
    if (last !== undefined) this.runTo(last);
  }

  runAll(): void {
    this.runTo(this.gone + this.waiting.length);
  }

  /** What still waits will never be read. */
  drop(): void {
    for (const [buffer, number] of this.writers) if (number > this.gone) buffer.abandon();
    for (const call of this.waiting.splice(0)) letGo(call);
  }

  private runTo(number: number): void {
    while (this.gone < number) {
      const call = this.waiting.shift() as Waiting;
      this.gone++;
      try {
        call.run();
      } finally {
        letGo(call);
      }
    }
  }
}

function letGo({ operands }: Waiting): void {
  for (const buffer of operands) buffer.release();
}

let row: Row | null = null;

/** The row that calls join, null outside of postponing(). */
export function openRow(): Row | null {
  return row;
}

/**
 * Runs `body`, whose calls wait: until needed() names what one of them writes, until another way to
 * use memory or order streams is taken (a copy, a read by the host, a collective, an event), or
 * until a call cannot wait. Those that wait when `body` ends never run, and reading what they would
 * have written is DS_RELEASED.
 */
export function postponing<T>(body: () => T): T {
  const outer = row;
  const own = new Row();
  row = own;
  try {
    return body();
  } finally {
    row = outer;
    own.drop();
  }
}

/** Runs `body`, whose calls do not wait, after those that do. */
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

/** Somebody will read `buffer` later: what it takes to fill it runs now. */
export function needed(buffer: Operand): void {
  if (row !== null) row.need(buffer);
}

/** The device's work so far is about to be used, or ordered: what waits runs now. */
export function runPostponed(): void {
  if (row !== null) row.runAll();
}
