// Streams and events: ordered queues of device work, and points in them.
import { addon } from './addon.js';
import { runDeferred } from './deferred-calls.js';
import { native } from './native.js';
import { poll } from './poll.js';

/**
 * The members of a stream's device (device.ts) that a stream uses; declared here to avoid a
 * circular import.
 */
export interface StreamDevice {
  readonly name: string;
  /** @internal */
  readonly number: number;
  /** The stream of ops that name no other stream. */
  readonly compute: Stream;
}

/** Priorities in the numbering of csrc/core/device.h. */
const URGENCIES = ['bulk', 'usual', 'awaited', 'first'] as const;

/**
 * Priority of a stream's work:
 *
 *     bulk      large, and no work waits for its first part
 *     awaited   compute reads it next; its copies to the device overtake bulk copies
 *     first     small, and all other work waits for it
 */
export type Urgency = (typeof URGENCIES)[number];

/** Live streams by handle; dispose() removes them. */
const living = new Map<number, Stream>();

/** An ordered queue of work on one device. A CPU stream runs work before the call returns. */
export class Stream {
  constructor(
    /** The device that owns the stream. */
    readonly device: StreamDevice,
    /** Native handle; owned by this object unless it is the device's compute stream. */
    readonly handle: number,
    /** The name of its work, for messages and traces. */
    readonly name: string,
  ) {
    living.set(handle, this);
  }

  /** Creates a stream on `device`; release it with dispose(). Traces call it `name`. */
  static create(device: StreamDevice, name = 'other work', urgency: Urgency = 'usual'): Stream {
    const level = URGENCIES.indexOf(urgency);
    const handle = native(() => addon.createStream(device.number, level));
    return new Stream(device, handle, name);
  }

  /** Returns the live stream with this handle, or undefined. */
  static of(handle: number): Stream | undefined {
    return living.get(handle);
  }

  /** Whether dispose() has not been called. */
  get isLive(): boolean {
    return living.get(this.handle) === this;
  }

  /** Orders later work of this stream after `event`. */
  wait(event: Event): void {
    native(() => addon.wait(this.handle, event.handle));
  }

  /** Blocks until all work enqueued so far has finished. */
  synchronize(): void {
    native(() => addon.synchronizeStream(this.handle));
  }

  /** Returns the stream to the driver once its work is done. Idempotent. */
  dispose(): void {
    if (!this.isLive) return;
    living.delete(this.handle);
    native(() => addon.releaseStream(this.handle));
  }
}

/** A point in a stream. Recording it again moves it. */
export class Event {
  /** Native handle; owned by this object. */
  readonly handle: number;
  private isReleased = false;

  /** `timed` events can measure elapsed time; untimed events cost less. */
  constructor(
    /** The device of the streams that record it. */
    readonly device: StreamDevice,
    private readonly timed = false,
  ) {
    this.handle = native(() => addon.createEvent(device.number, timed));
  }

  /**
   * Marks the present end of the work of `stream`. Runs deferred ops first (deferred-calls.ts),
   * unless the event only measures time.
   */
  record(stream: Stream): this {
    if (!this.timed) runDeferred();
    native(() => addon.record(this.handle, stream.handle));
    return this;
  }

  /** Whether the work before the event is finished. Does not wait. */
  get done(): boolean {
    return native(() => addon.done(this.handle));
  }

  /** Blocks until the point has been passed. */
  synchronize(): void {
    native(() => addon.synchronizeEvent(this.handle));
  }

  /** Resolves when the work before the event is finished, without blocking the event loop. */
  reached(): Promise<void> {
    return poll(() => this.done);
  }

  /** Returns milliseconds from `start` to this event; both must be timed, recorded and done. */
  since(start: Event): number {
    return native(() => addon.elapsedMs(start.handle, this.handle));
  }

  /** Returns the event to the driver. Idempotent. */
  dispose(): void {
    if (this.isReleased) return;
    this.isReleased = true;
    native(() => addon.releaseEvent(this.handle));
  }
}
