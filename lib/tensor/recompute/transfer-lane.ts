// Copies of a device's tensors in pinned host memory, on two streams in addition to the compute
// stream.
import { Buffer } from '../../runtime/buffer.js';
import type { Device } from '../../runtime/device.js';
import { dtypeSize } from '../../runtime/dtype.js';
import { required } from '../../runtime/required.js';
import { Event, Stream } from '../../runtime/stream.js';
import { held } from '../scope.js';
import { Tensor } from '../tensor.js';

/** Segments that wait for their replay, in forward order. */
class SegmentQueue<Segment> {
  private readonly waiting: Segment[] = [];

  get newest(): Segment | undefined {
    return this.waiting.at(-1);
  }

  add(segment: Segment): void {
    this.waiting.push(segment);
  }

  /** Removes a segment; returns the previous segment. */
  remove(segment: Segment): Segment | null {
    const index = this.waiting.indexOf(segment);
    if (index < 0) return null;
    this.waiting.splice(index, 1);
    return this.waiting[index - 1] ?? null;
  }
}

/** A segment with tensors in host memory. */
interface OffloadedSegment {
  /** Enqueues the copies back to the device, unless it has done so before. */
  upload(): void;
}

/**
 * Two copy streams of one device. Lives as long as the process, because buffers shared with its
 * streams may outlive every configuration.
 */
export class TransferLane {
  readonly down: Stream;
  readonly up: Stream;
  readonly pool: PinnedPool;
  /** For orderAfter(), which records the event and waits for it at once: all calls can share it. */
  readonly mark: Event;
  readonly inputs = new SegmentQueue<OffloadedSegment & { leaveDevice(): void }>();
  readonly results = new SegmentQueue<OffloadedSegment>();

  constructor(readonly device: Device) {
    this.down = Stream.create(device, 'activations to the host');
    this.up = Stream.create(device, 'activations to the device');
    this.pool = new PinnedPool(device);
    this.mark = new Event(device);
  }

  /** Makes later work of `stream` wait for the present work of `earlier`. */
  orderAfter(stream: Stream, earlier: Stream): void {
    stream.wait(this.mark.record(earlier));
  }
}

const lanes = new Map<Device, TransferLane>();

export function laneOf(device: Device): TransferLane {
  let lane = lanes.get(device);
  if (!lane) {
    lane = new TransferLane(device);
    lanes.set(device, lane);
  }
  return lane;
}

/** Frees pinned memory that no copy uses; waits for the device if there is some. */
export function drainLanes(): void {
  for (const { pool } of lanes.values()) pool.drain();
}

/** Returns the number of elements between a tensor's first and last element in memory. */
export function spanOf({ shape, strides }: Tensor): number {
  return shape.reduce((total, size, d) => total + (size - 1) * required(strides[d]), 1);
}

/**
 * A tensor of the device that moves to host memory and back. The caller first makes `down` wait for
 * compute; uploadAll() makes `up` wait.
 */
export class HostCopy {
  /** Layout of the tensor. The copy includes gaps, so the strides stay the same. */
  private readonly like: Pick<Tensor, 'dtype' | 'shape' | 'strides'>;
  private readonly bytes: number;
  /** The tensor on the device, with a reference; null while only the host has it. */
  private onDevice: Tensor | null;
  /** The copy; null once its upload has been enqueued. */
  private slot: PinnedSlot | null;

  /** Enqueues the copy of `tensor`, and takes over one reference to it. */
  constructor(
    private readonly lane: TransferLane,
    tensor: Tensor,
  ) {
    const { pool, down, mark } = lane;
    const { dtype, shape, strides, offset } = tensor;
    const size = dtypeSize(dtype);
    this.like = { dtype, shape, strides };
    this.bytes = spanOf(tensor) * size;
    this.onDevice = tensor;
    this.slot = pool.take(this.bytes);
    down.wait(this.slot.read);
    this.slot.buffer.copyFrom(tensor.buffer, { from: offset * size, bytes: this.bytes }, down);
    tensor.buffer.addReader(down, mark);
  }

  /** The tensor on the device; null while only the host has it. */
  get tensor(): Tensor | null {
    return this.onDevice;
  }

  /** Gives up the reference to the tensor. Its memory is freed in the order of `down`. */
  leaveDevice(): void {
    this.onDevice?.release();
    this.onDevice = null;
  }

  /** Allocates the tensor again. upload() follows. */
  allocate(): void {
    const { device } = this.lane;
    const { dtype, shape, strides } = this.like;
    this.onDevice = held(
      () => new Tensor(Buffer.allocate(device, this.bytes), dtype, shape, strides),
    );
  }

  /** Enqueues the copy back on `up`. */
  upload(): void {
    const { up, pool } = this.lane;
    const slot = required(this.slot);
    this.slot = null;
    required(this.onDevice).buffer.copyFrom(slot.buffer, { bytes: this.bytes }, up);
    slot.read.record(up);
    pool.giveBack(slot);
  }

  release(): void {
    this.leaveDevice();
    if (this.slot) this.lane.pool.giveBack(this.slot);
    this.slot = null;
  }
}

/**
 * Enqueues the upload of `copies` after their downloads and the present compute work. `done`
 * records the end of the upload.
 */
export function uploadAll(lane: TransferLane, copies: readonly HostCopy[], done: Event): void {
  for (const copy of copies) copy.allocate();
  lane.orderAfter(lane.up, lane.down);
  lane.orderAfter(lane.up, lane.device.compute);
  for (const copy of copies) copy.upload();
  done.record(lane.up);
}

/** A pinned buffer of the pool. */
interface PinnedSlot {
  readonly buffer: Buffer;
  /** The last read of the buffer; the next writer waits for it. */
  readonly read: Event;
}

/**
 * A pool of pinned host buffers for tensors of segments. A slot returns when its last read has been
 * enqueued.
 */
class PinnedPool {
  private idle: PinnedSlot[] = [];
  private recycles = true;

  constructor(private readonly device: Device) {}

  /**
   * Returns the smallest idle slot of at least `bytes` and at most twice as many, else a new one of
   * `bytes`. Throws DS_OUT_OF_MEMORY if the host has too little.
   */
  take(bytes: number): PinnedSlot {
    this.recycles = true;
    let best: PinnedSlot | null = null;
    for (const slot of this.idle) {
      const fits = slot.buffer.bytes >= bytes && slot.buffer.bytes <= 2 * bytes;
      if (fits && (!best || slot.buffer.bytes < best.buffer.bytes)) best = slot;
    }
    if (best) {
      this.idle.splice(this.idle.indexOf(best), 1);
      return best;
    }
    return { buffer: Buffer.allocatePinned(this.device, bytes), read: new Event(this.device) };
  }

  giveBack(slot: PinnedSlot): void {
    if (this.recycles) this.idle.push(slot);
    else freeSlot(slot);
  }

  /** Frees idle slots, and slots that return before the next take(). */
  drain(): void {
    this.recycles = false;
    for (const slot of this.idle) freeSlot(slot);
    this.idle = [];
  }
}

/** Frees a slot after the device has finished its last read. */
function freeSlot({ buffer, read }: PinnedSlot): void {
  buffer.release();
  read.dispose();
}
