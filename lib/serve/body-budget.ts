// Limits the memory of request bodies.
import { overloadedError } from './api-error.js';

/** Bytes of a body that are always accepted. The connection limit bounds their sum. */
const FREE_BYTES = 64 * 1024;

/** Counts the bytes of bodies until their requests have ended. */
export class BodyBudget {
  private used = 0;

  /** `max`: bytes of all bodies in memory. */
  constructor(private readonly max: number) {}

  /** Bytes of the bodies in memory. */
  get bytes(): number {
    return this.used;
  }

  /** Opens an empty reservation for one request. */
  open(): BodyReservation {
    return new BodyReservation(
      (bytes) => {
        this.used += bytes;
      },
      (size) => size > FREE_BYTES && this.used > this.max,
    );
  }
}

/** Bytes of one request's body. */
export class BodyReservation {
  private size = 0;

  constructor(
    private readonly count: (bytes: number) => void,
    private readonly isTooMuch: (size: number) => boolean,
  ) {}

  /** Reserves more bytes. If the budget is exceeded, frees the reservation and throws 503. */
  add(bytes: number): void {
    this.size += bytes;
    this.count(bytes);
    if (!this.isTooMuch(this.size)) return;
    this.close();
    const message =
      'All request bodies together exceed the memory that this server allows. Send the request again later.';
    throw overloadedError(message, { code: 'bodies_full' });
  }

  /** Frees the bytes when the request has ended. */
  close(): void {
    this.count(-this.size);
    this.size = 0;
  }
}
