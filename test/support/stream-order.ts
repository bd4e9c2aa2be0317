// Checks the order of memory accesses by streams with vector clocks. Two uses of the same bytes,
// one of them a write, are a race unless events or host waits order them. On the CPU, streams run
// synchronously, so only this checker finds a wait that a GPU would need.

/** The position of each actor, by its number. */
type Clock = Map<number, number>;

/** The host's thread, as an actor; streams are actors by their handles. */
export const HOST = 0;

/** Bytes of a buffer. */
export interface Bytes {
  buffer: number;
  from: number;
  /** Exclusive. */
  to: number;
}

/** A use of memory at a position of an actor. */
interface Use extends Bytes {
  writes: boolean;
  actor: number;
  at: number;
  /** A description for messages. */
  what: string;
  holds: boolean;
}

const join = (clock: Clock, other: ReadonlyMap<number, number>): void => {
  for (const [actor, at] of other) if ((clock.get(actor) ?? 0) < at) clock.set(actor, at);
};

export const overlap = (a: Bytes, b: Bytes): boolean =>
  a.buffer === b.buffer && a.from < b.to && b.from < a.to;
export const isWithin = (a: Bytes, b: Bytes): boolean =>
  a.buffer === b.buffer && b.from <= a.from && a.to <= b.to;

export class StreamOrder {
  private readonly clocks = new Map<number, Clock>();
  private readonly events = new Map<number, Clock>();
  private readonly uses = new Map<number, Use[]>();
  private readonly names = new Map<number, string>([[HOST, 'the host']]);

  /** Sets the name of `actor` in messages. */
  name(actor: number, name: string): void {
    this.names.set(actor, name);
  }

  /** Begins an operation of `actor`, after all that the host has waited for. */
  begin(actor: number): void {
    const clock = this.clockOf(actor);
    join(clock, this.clockOf(HOST));
    clock.set(actor, (clock.get(actor) ?? 0) + 1);
  }

  /**
   * Records that the current operation of `actor` uses these bytes. `holds`: their memory stays in
   * use until an actor waits for it. Returns the race, or null.
   */
  use(
    actor: number,
    bytes: Bytes,
    writes: boolean,
    { what, holds = false }: { what: string; holds?: boolean },
  ): string | null {
    if (bytes.from >= bytes.to) return null;
    const clock = this.clockOf(actor);
    const all = this.uses.get(bytes.buffer) ?? [];
    const late = all.find(
      (other) => (writes || other.writes) && overlap(bytes, other) && !this.isBefore(other, clock),
    );
    const now: Use = { ...bytes, writes, actor, at: clock.get(actor) ?? 0, what, holds };
    const kept = all.filter((other) => !this.isCovered(other, now, clock));
    this.uses.set(bytes.buffer, [...kept, now]);
    return late ? this.raceOf(late, now) : null;
  }

  /**
   * Frees the buffer in the order of `actor`. It is allocated again in the order of `owner`, which
   * may then use it. Returns the race, or null.
   */
  free(actor: number, buffer: number, owner: number, label: string): string | null {
    const all = this.uses.get(buffer) ?? [];
    this.uses.delete(buffer);
    const clock = this.clockOf(actor);
    const late = all.find(
      (other) => !other.holds && other.actor !== owner && !this.isBefore(other, clock),
    );
    const whole = { buffer, from: 0, to: Number.POSITIVE_INFINITY };
    return late
      ? this.raceOf(late, { ...whole, writes: true, actor, at: 0, what: label, holds: false })
      : null;
  }

  record(event: number, actor: number): void {
    this.begin(actor);
    this.events.set(event, new Map(this.clockOf(actor)));
  }

  /** Later work of `actor` comes after the event; HOST waits synchronously. */
  wait(actor: number, event: number): void {
    join(this.clockOf(actor), this.events.get(event) ?? new Map());
  }

  /** Later work of `actor` comes after all present work of `other`. */
  follow(actor: number, other: number): void {
    join(this.clockOf(actor), this.clockOf(other));
  }

  /** The event is destroyed. */
  forget(event: number): void {
    this.events.delete(event);
  }

  /** The host has waited for all work of `actor`, past and future. */
  end(actor: number): void {
    this.clocks.delete(actor);
    for (const clock of [...this.clocks.values(), ...this.events.values()]) clock.delete(actor);
  }

  /** Whether the host has waited for it. */
  hasPassed(event: number): boolean {
    const host = this.clockOf(HOST);
    return [...(this.events.get(event) ?? [])].every(([actor, at]) => (host.get(actor) ?? 0) >= at);
  }

  private isBefore(use: Use, clock: Clock): boolean {
    return !this.clocks.has(use.actor) || (clock.get(use.actor) ?? 0) >= use.at;
  }

  /** Every later race with `other` is also a race with `now`. */
  private isCovered(other: Use, now: Use, clock: Clock): boolean {
    const asMuch = now.writes || !other.writes;
    return asMuch && isWithin(other, now) && this.isBefore(other, clock);
  }

  private raceOf(early: Use, late: Use): string {
    const textOf = ({ what, actor, from, to, writes }: Use): string =>
      `${what} of ${this.names.get(actor) ?? `stream ${actor}`} ${writes ? 'writes' : 'reads'} bytes ${from} to ${to}`;
    return `buffer ${late.buffer}: ${textOf(late)}, and nothing orders it after this: ${textOf(early)}`;
  }

  private clockOf(actor: number): Clock {
    const clock = this.clocks.get(actor) ?? new Map();
    this.clocks.set(actor, clock);
    return clock;
  }
}
