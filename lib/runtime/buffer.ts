// Buffer: a block of device or pinned memory with a reference count.
import { addon, block as sharedBlock } from './addon.js';
import { openQueue, runDeferred } from './deferred-calls.js';
import type { Device } from './device.js';
import { failure, native } from './native.js';
import type { Event, Stream } from './stream.js';

const { allocate, release } = addon;

/** A local binding, as in call.ts. */
const block = sharedBlock;

/**
 * Positions of the arguments of allocate() in the block. allocate() returns the handle in place of
 * the stream.
 */
const [STREAM, BYTES] = [block.length - 2, block.length - 1];

/**
 * The memory of one or more tensors. The last release() frees it when earlier work of its stream is
 * done; afterwards every use throws DS_RELEASED.
 */
export class Buffer {
  /**
   * @internal Native handle for an argument of an op that may be deferred (deferred-calls.ts); 0
   * after the release.
   */
  id: number;
  /** Whether it was released before it was written, because no reader remained. */
  isAbandoned = false;
  /** The tape's sequence number of the last in-place change; 0 if there was none. */
  changedAt = 0;
  private references = 1;
  private releaseStream: Stream | null = null;
  private releaseMark: Event | null = null;

  private constructor(
    readonly device: Device,
    readonly bytes: number,
    readonly pinned: boolean,
    handle: number,
  ) {
    this.id = handle;
  }

  /** Native handle for immediate use, after running deferred ops; 0 after the release. */
  get handle(): number {
    runDeferred();
    return this.id;
  }

  /**
   * Returns device memory with undefined contents. Throws DS_OUT_OF_MEMORY if the device has too
   * little.
   */
  static allocate(device: Device, bytes: number): Buffer {
    const buffer = new Buffer(device, bytes, false, allocateFor(device, bytes));
    openQueue()?.noteAllocated(buffer);
    return buffer;
  }

  /**
   * Returns page-locked, zeroed host memory that `device` copies to and from at full speed.
   */
  static allocatePinned(device: Device, bytes: number): Buffer {
    const handle = native(() => addon.allocatePinned(device.number, bytes));
    return new Buffer(device, bytes, true, handle);
  }

  /** Returns pinned memory of another thread by its offer(); it lives until both release it. */
  static take(device: Device, bytes: number, offer: number): Buffer {
    const handle = native(() => addon.takeBuffer(offer));
    return new Buffer(device, bytes, true, handle);
  }

  /** Withdraws an offer that was not taken. */
  static withdraw(offer: number): void {
    native(() => addon.withdrawBuffer(offer));
  }

  /** The buffer of released tensors: every use throws DS_RELEASED. */
  static readonly released = new Buffer(null as unknown as Device, 0, false, 0);

  /** Returns a number for one take() of this pinned memory by another thread. */
  offer(): number {
    return native(() => addon.offerBuffer(this.handle));
  }

  retain(): this {
    this.references++;
    return this;
  }

  /** Whether several tensors view this memory. */
  get isShared(): boolean {
    return this.references > 1;
  }

  release(): void {
    if (--this.references > 0 || this.id === 0) return;
    this.free();
  }

  /**
   * @internal Frees the memory before it is written: a deferred op would have written it, but no op
   * reads it.
   */
  abandon(): void {
    if (this.id === 0) return;
    this.isAbandoned = true;
    this.free();
  }

  private free(): void {
    const handle = this.id;
    this.id = 0;
    // dispose() waits for a stream's work, so a disposed stream no longer reads the memory.
    const stream = this.releaseStream?.isLive ? this.releaseStream : null;
    if (this.releaseMark) stream?.wait(this.releaseMark.record(this.device.compute));
    if (stream) native(() => addon.releaseOn(handle, stream.handle));
    else releaseNow(handle);
  }

  /** Whether it has memory on its device: neither released nor evicted. */
  get isPresent(): boolean {
    return this.id !== 0;
  }

  /** Whether no tensor views it any more. */
  get isReleased(): boolean {
    return this.references <= 0;
  }

  /**
   * Copies the contents to `host` in the order of `stream`, then frees the device memory. Until
   * restore(), every use throws DS_RELEASED. Blocks if `host` is not pinned.
   */
  evict(host: Buffer | Uint8Array, stream: Stream): void {
    const { handle, bytes } = this;
    if (host instanceof Buffer) host.copyFrom(this, { bytes }, stream);
    else this.read(0, host, stream);
    this.id = 0;
    native(() => addon.releaseOn(handle, stream.handle));
  }

  /**
   * Allocates device memory again, and copies the contents from `host` in the order of `stream`,
   * after the present compute work. `allocated` is an event of the device, recorded here. Throws
   * DS_OUT_OF_MEMORY if the device has too little.
   */
  restore(host: Buffer | Uint8Array, stream: Stream, allocated: Event): void {
    this.id = allocateFor(this.device, this.bytes);
    stream.wait(allocated.record(this.device.compute));
    if (host instanceof Buffer) this.copyFrom(host, { bytes: this.bytes }, stream);
    else this.write(0, host, stream);
  }

  /** Releases the memory in the order of `stream`, its last user, instead of the compute stream. */
  releaseOn(stream: Stream): void {
    this.releaseStream = stream;
  }

  /**
   * Registers `stream` as a reader of the memory in addition to the compute stream. The memory is
   * freed when both have passed their last use. release() records `mark`, an event of the device;
   * stream and mark must outlive the buffer.
   */
  addReader(stream: Stream, mark: Event): void {
    this.releaseStream = stream;
    this.releaseMark = mark;
  }

  /** Enqueues a copy of bytes from another buffer; either may be pinned. */
  copyFrom(source: Buffer, range: CopyRange, stream: Stream): void {
    const { to = 0, from = 0, bytes } = range;
    native(() => addon.copy(this.handle, to, source.handle, from, bytes, stream.handle));
  }

  /** Fills `target` from `offset` and blocks until the data is there. */
  read(offset: number, target: ArrayBufferView, stream: Stream = this.device.compute): void {
    native(() => addon.read(this.handle, offset, target, stream.handle));
  }

  /** Copies `source` to `offset`. The caller may change `source` as soon as the call returns. */
  write(offset: number, source: ArrayBufferView, stream: Stream = this.device.compute): void {
    native(() => addon.write(this.handle, offset, source, stream.handle));
  }
}

// Without the closure of native(): every op allocates its output here.
function allocateFor(device: Device, bytes: number): number {
  try {
    block[STREAM] = device.compute.handle;
    block[BYTES] = bytes;
    allocate();
    return block[STREAM];
  } catch (error) {
    throw failure(error);
  }
}

function releaseNow(handle: number): void {
  try {
    release(handle);
  } catch (error) {
    throw failure(error);
  }
}

/** Byte offsets and length of a copy. */
interface CopyRange {
  to?: number;
  from?: number;
  bytes: number;
}
