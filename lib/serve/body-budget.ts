// The bytes of all request bodies that a server holds.
import { overloaded } from './api-error.js';

/** Bytes of a body that the server always accepts. The limit of connections bounds their sum. */
const FREE_BYTES = 64 * 1024;

/** Counts bytes of bodies until their requests have ended. */
export class BodyBudget {
  private held = 0;

  /** `max`: bytes of all bodies together. */
  constructor(private readonly max: number) {}

  /** Bytes that requests hold now. */
  get bytes(): number {
    return this.held;
  }

  /** An empty reservation for one request. */
  open(): BodyReservation {
    return new BodyReservation(
      (bytes) => {
        this.held += bytes;
      },
      (size) => size > FREE_BYTES && this.held > this.max,
    );
  }
}

/** The bytes of one request's body. */
export class BodyReservation {
  private size = 0;

  constructor(
    private readonly count: (bytes: number) => void,
    private readonly isTooMuch: (size: number) => boolean,
  ) {}

  /**
   * Holds more bytes. Throws 503 if all bodies together are too large; the reservation is then
   * empty.
   */
  add(bytes: number): void {
    this.size += bytes;
    this.count(bytes);
    if (!this.isTooMuch(this.size)) return;
    this.close();
    const message = 'The bodies of all requests under way have more bytes than this server holds.';
    throw overloaded(message, { code: 'bodies_full' });
  }

  /** The request has ended. */
  close(): void {
    this.count(-this.size);
    this.size = 0;
  }
}
