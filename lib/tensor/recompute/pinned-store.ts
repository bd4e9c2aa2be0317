// cpu_checkpointing: moves a segment's inputs to pinned host memory, and back before their replay.
import { Buffer } from '../../runtime/buffer.js';
import type { Device } from '../../runtime/device.js';
import { dtypeSize, isFloating } from '../../runtime/dtype.js';
import { required } from '../../runtime/required.js';
import { Event, Stream } from '../../runtime/stream.js';
import { held } from '../scope.js';
import { Tensor } from '../tensor.js';
import { type ActivationStore, type KeptInputs, onDevice } from './store.js';

/**
 * Two copy streams of one device and its waiting segments, in forward order. Lives as long as the
 * process, because buffers shared with its streams may outlive every configuration.
 */
class TransferLane {
  readonly down: Stream;
  readonly up: Stream;
  readonly pool: PinnedPool;
  readonly waiting: OffloadedInputs[] = [];
  /** Recorded and waited for in one go; never pending for longer. */
  readonly mark: Event;

  constructor(readonly device: Device) {
    this.down = Stream.create(device, 'activations to the host');
    this.up = Stream.create(device, 'activations to the device');
    this.pool = new PinnedPool(device);
    this.mark = new Event(device);
  }

  /** Later work of `stream` starts after the work enqueued on `behind` so far. */
  order(stream: Stream, behind: Stream): void {
    stream.wait(this.mark.record(behind));
  }
}

const lanes = new Map<Device, TransferLane>();

function laneOf(device: Device): TransferLane {
  let lane = lanes.get(device);
  if (!lane) {
    lane = new TransferLane(device);
    lanes.set(device, lane);
  }
  return lane;
}

/** An input that the host has a copy of. */
interface Moved {
  readonly index: number;
  /** Its layout. The spanned memory is copied unchanged, so the strides stay the same. */
  readonly like: Pick<Tensor, 'dtype' | 'shape' | 'strides'>;
  readonly bytes: number;
  /** The held input on the device; null while only the host has it. */
  tensor: Tensor | null;
  /** The copy; null once its upload has been enqueued. */
  slot: PinnedSlot | null;
}

/**
 * Order by events only; the host never waits.
 *
 *     down stream  copies the inputs while their segment runs. Their device memory is freed in the
 *                  order of this stream when the next segment starts, which waits for that copy.
 *                  So the inputs of two segments are on the device at a time.
 *     up stream    copies a segment's inputs back while its successor is replayed
 *
 * The newest segment's inputs stay on the device, because the backward begins with them.
 */
class OffloadedInputs implements KeptInputs {
  private references = 0;
  private state: 'device' | 'host' | 'uploading' | 'restored' = 'device';
  private readonly moved: Moved[] = [];
  /** The inputs, with null for the moved ones. */
  private readonly rest: unknown[];
  private readonly uploaded: Event;

  constructor(
    private readonly lane: TransferLane,
    inputs: readonly unknown[],
  ) {
    this.rest = [...inputs];
    this.uploaded = new Event(lane.device);
  }

  retain(): this {
    if (this.references++ > 0) return this;
    const { waiting, device, down } = this.lane;
    waiting.at(-1)?.leaveDevice();
    waiting.push(this);
    this.lane.order(down, device.compute);
    this.rest.forEach((input, index) => {
      if (!(input instanceof Tensor)) return;
      if (isMovable(input, device)) this.download(input.retain(), index);
      else input.retain();
    });
    return this;
  }

  release(): void {
    if (--this.references > 0) return;
    this.stopWaiting();
    this.awaitUpload();
    for (const { tensor, slot } of this.moved) {
      tensor?.release();
      if (slot) this.lane.pool.give(slot);
    }
    for (const input of this.rest) if (input instanceof Tensor) input.release();
    this.uploaded.dispose();
  }

  restore(): readonly unknown[] {
    const predecessor = this.stopWaiting();
    this.upload();
    this.awaitUpload();
    predecessor?.upload();
    const inputs = [...this.rest];
    for (const { index, tensor } of this.moved) inputs[index] = tensor;
    return inputs;
  }

  private download(tensor: Tensor, index: number): void {
    const { pool, down, mark } = this.lane;
    const { dtype, shape, strides, offset } = tensor;
    const size = dtypeSize(dtype);
    const bytes = span(tensor) * size;
    const moved: Moved = { index, like: { dtype, shape, strides }, bytes, tensor, slot: null };
    this.rest[index] = null;
    this.moved.push(moved);
    moved.slot = pool.take(bytes);
    down.wait(moved.slot.read);
    moved.slot.buffer.copyFrom(tensor.buffer, { from: offset * size, bytes }, down);
    tensor.buffer.sharedWith(down, mark);
  }

  /** Releases the device's copies. Their memory can be reused from here on. */
  private leaveDevice(): void {
    if (this.state !== 'device') return;
    this.state = 'host';
    for (const moved of this.moved) {
      moved.tensor?.release();
      moved.tensor = null;
    }
    const { device, down } = this.lane;
    this.lane.order(device.compute, down);
  }

  private upload(): void {
    if (this.state !== 'host') return;
    this.state = 'uploading';
    const { device, up, pool } = this.lane;
    const fresh = this.moved.map(({ like, bytes }) =>
      held(() => new Tensor(Buffer.allocate(device, bytes), like.dtype, like.shape, like.strides)),
    );
    this.lane.order(up, device.compute);
    this.moved.forEach((moved, i) => {
      const tensor = required(fresh[i]);
      const slot = required(moved.slot);
      tensor.buffer.copyFrom(slot.buffer, { bytes: moved.bytes }, up);
      slot.read.record(up);
      pool.give(slot);
      moved.tensor = tensor;
      moved.slot = null;
    });
    this.uploaded.record(up);
  }

  /** Work of the compute stream from here on finds the inputs in place. */
  private awaitUpload(): void {
    if (this.state !== 'uploading') return;
    this.state = 'restored';
    this.lane.device.compute.wait(this.uploaded);
  }

  /** Leaves the queue; returns the segment before this one. */
  private stopWaiting(): OffloadedInputs | null {
    const { waiting } = this.lane;
    const index = waiting.indexOf(this);
    if (index < 0) return null;
    waiting.splice(index, 1);
    return waiting[index - 1] ?? null;
  }
}

/** The elements from a tensor's first to its last in memory. */
function span({ shape, strides }: Tensor): number {
  return shape.reduce((total, size, d) => total + (size - 1) * required(strides[d]), 1);
}

/**
 * Returns whether an input can move: floating, on the device, without gaps in memory, and not a
 * leaf, which stays in memory anyway. Other inputs (indices, masks, parameters) stay.
 */
function isMovable(input: Tensor, device: Device): boolean {
  const isLeaf = input.requiresGrad && !input.gradFn;
  if (isLeaf || input.numel === 0 || !isFloating(input.dtype)) return false;
  return input.device === device && span(input) <= input.numel;
}

/**
 * The copies use the bus while the device computes. On the CPU device they are plain copies: same
 * bits, no memory saved.
 */
export class PinnedStore implements ActivationStore {
  keep(inputs: readonly unknown[]): KeptInputs {
    const first = inputs.find((input) => input instanceof Tensor);
    return first ? new OffloadedInputs(laneOf(first.device), inputs) : onDevice.keep(inputs);
  }

  dispose(): void {
    for (const { pool } of lanes.values()) pool.drain();
  }
}

// A pool of pinned host buffers: a segment's inputs take one, the next step reuses it.

/** A pinned buffer on loan. */
interface PinnedSlot {
  readonly buffer: Buffer;
  /** The last read of the buffer; the next writer waits for it. */
  readonly read: Event;
}

/** Not thread-safe; slots return when their last read has been enqueued. */
class PinnedPool {
  private idle: PinnedSlot[] = [];
  private recycles = true;

  constructor(private readonly device: Device) {}

  /**
   * The smallest idle slot of at least `bytes` and at most twice as many, else a new one of
   * `bytes`. Throws DS_OUT_OF_MEMORY.
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

  give(slot: PinnedSlot): void {
    if (this.recycles) this.idle.push(slot);
    else free(slot);
  }

  /** Frees idle slots, and slots that return before the next take(). */
  drain(): void {
    this.recycles = false;
    for (const slot of this.idle) free(slot);
    this.idle = [];
  }
}

/** Waits for the device to be done with it. */
function free({ buffer, read }: PinnedSlot): void {
  buffer.release();
  read.dispose();
}
