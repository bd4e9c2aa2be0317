// StreamedState: optimizer state in pinned host memory that the device updates through two windows.
// Source: Maurya et al. 2024 (Deep Optimizer States), which updates every n-th subgroup of an
// offloaded optimizer this way.

import type { Optimizer } from '../../../optim/optimizer.js';
import { deviceKernels, type UpdateKernels } from '../../../optim/update-kernels.js';
import { Buffer } from '../../../runtime/buffer.js';
import type { Device } from '../../../runtime/device.js';
import { type DType, dtypeSize } from '../../../runtime/dtype.js';
import { required } from '../../../runtime/required.js';
import { Event, Stream } from '../../../runtime/stream.js';
import { copyAll, zeroRange } from '../../../tensor/flat.js';
import { held, Tensor } from '../../../tensor/index.js';
import { alignUp } from '../../layout.js';
import type { Partition } from '../../partition.js';
import { StateInMemory } from '../in-memory.js';
import { allocateFilled, allocatePinned, type Bytes } from '../memory.js';
import type { OpenTile, Placement, PlacementCosts, TileWindows } from '../strategies.js';
import type { StateTile } from '../tiles.js';
import { type HostStateOptions, HostStreams } from './host.js';

/** Number of windows: one is updated while the other is emptied and refilled. */
const WINDOWS = 2;

/** Alignment of tensors in a window, in bytes, for loads of any width. */
const ALIGNMENT = 256;

interface Window {
  memory: Buffer;
  /** The tile in the window; `hostTile` is its state in host memory. */
  tile: StateTile | null;
  hostTile: OpenTile | null;
  /** The tensors for kernels while it is open. */
  opened: OpenTile | null;
  readonly filled: Event;
  readonly computed: Event;
  /** Recorded when no work uses the window any more, and host memory has the changes. */
  readonly left: Event;
}

/**
 * Three streams, ordered only by events:
 *
 *   up       state of a tile to its window
 *   updates  kernels (the caller's stream)
 *   down     changed state from the window, while the next tile goes up
 *
 * PCIe carries both directions at once. One tile is open at a time.
 */
export class Windows implements TileWindows {
  /** The stream that orders changed state in host memory. */
  readonly down: Stream;
  private readonly up: Stream;
  private readonly windows: Window[] = [];
  private readonly written: Event;
  private next = 0;

  constructor(
    private readonly device: Device,
    private readonly updates: Stream,
  ) {
    this.up = Stream.create(device, 'state to the device', 'bulk');
    this.down = Stream.create(device, 'state to the host', 'bulk');
    this.written = new Event(device);
  }

  /** Enlarges the windows for this tile. Call it before a tile is opened. */
  makeRoom(state: OpenTile): void {
    const sizes = tensorsOf(state).map(({ bytes }) => alignUp(bytes, ALIGNMENT));
    const bytes = sizes.reduce((sum, size) => sum + size, 0);
    if (bytes <= (this.windows[0]?.memory.bytes ?? 0)) return;
    for (const { memory } of this.windows) memory.release();
    const { device } = this;
    for (let i = 0; i < WINDOWS; ++i) {
      const memory = Buffer.allocate(device, bytes);
      const window = this.windows[i];
      if (window) window.memory = memory;
      else {
        this.windows.push({
          memory,
          tile: null,
          hostTile: null,
          opened: null,
          filled: new Event(device),
          computed: new Event(device),
          left: new Event(device),
        });
      }
    }
    this.followCompute();
  }

  /** Makes later tiles see the host memory that compute work so far has written. */
  followCompute(): void {
    this.up.wait(this.written.record(this.device.compute));
  }

  /**
   * Returns the state of `tile` on the device for later work on the updates' stream. `keptOf`
   * returns the state in host memory; takes ownership of it.
   */
  open(tile: StateTile, keptOf: () => OpenTile): OpenTile {
    const { up } = this;
    const kept = keptOf();
    const window = required(this.windows[this.next]);
    this.next = (this.next + 1) % WINDOWS;
    up.wait(window.left);
    // Its last update may still be on its way to the host, from the other window.
    for (const window of this.windows) if (window.tile === tile) up.wait(window.left);
    const opened = placeTensors(window.memory, kept);
    for (const [to, from] of pairTensors(opened, kept)) copyAll(to, from, up);
    this.updates.wait(window.filled.record(up));
    Object.assign(window, { tile, hostTile: kept, opened });
    return opened;
  }

  /** Copies the state back to host memory if it was changed. */
  close({ master }: OpenTile, changed: boolean): void {
    const window = required(this.windows.find(({ opened }) => opened?.master === master));
    const [kept, opened] = [required(window.hostTile), required(window.opened)];
    const last = changed ? this.down : this.updates;
    if (changed) {
      last.wait(window.computed.record(this.updates));
      for (const [from, to] of pairTensors(opened, kept)) copyAll(to, from, last);
    }
    window.left.record(last);
    for (const tensor of tensorsOf(opened)) tensor.release();
    kept.master.release();
    Object.assign(window, { hostTile: null, opened: null });
  }

  get bytes(): number {
    return this.windows.reduce((sum, { memory }) => sum + memory.bytes, 0);
  }

  synchronize(): void {
    for (const stream of [this.up, this.down]) stream.synchronize();
  }

  dispose(): void {
    for (const { memory, filled, computed, left } of this.windows.splice(0)) {
      memory.release();
      for (const event of [filled, computed, left]) event.dispose();
    }
    this.written.dispose();
    for (const stream of [this.up, this.down]) stream.dispose();
  }
}

const tensorsOf = ({ master, state }: OpenTile): Tensor[] => [master, ...Object.values(state)];

function pairTensors(a: OpenTile, b: OpenTile): [Tensor, Tensor][] {
  const others = tensorsOf(b);
  return tensorsOf(a).map((tensor, i) => [tensor, required(others[i])]);
}

/** Places a tile's tensors in a window, one after another, with the sizes of `kept`. */
function placeTensors(memory: Buffer, { master, state }: OpenTile): OpenTile {
  let end = 0;
  const placeTensor = ({ dtype, numel, bytes }: Tensor): Tensor => {
    const first = end / dtypeSize(dtype);
    end += alignUp(bytes, ALIGNMENT);
    return held(() => new Tensor(memory.retain(), dtype, [numel], undefined, first));
  };
  const first = placeTensor(master);
  const rest = Object.entries(state).map(([name, tensor]) => [name, placeTensor(tensor)] as const);
  return { master: first, state: Object.fromEntries(rest) };
}

/** Elements of a tile: enough for the full PCIe rate, few enough for small windows. */
const STREAMED_TILE = 2 ** 24;

/**
 * The device updates on a stream in parallel with compute and turns gradients into weights there,
 * so neither crosses PCIe. Device memory: one gradient element per parameter, and two windows. Only
 * for elementwise rules: see isByElement().
 */
export class StreamedState implements Placement {
  static readonly costs: PlacementCosts = {
    state: 'host',
    updates: 'device',
    windows: WINDOWS,
    largestTile: STREAMED_TILE,
  };
  readonly storage: StateInMemory;
  readonly traffic: HostStreams;
  readonly kernels: UpdateKernels;
  readonly windows: Windows;
  readonly updatesOnDevice = true;
  readonly receivesGradients = true;

  constructor(
    private readonly device: Device,
    optimizer: Optimizer,
    { tile, readBefore }: HostStateOptions,
  ) {
    this.traffic = new HostStreams(device, readBefore);
    this.kernels = deviceKernels(this.traffic.order);
    this.windows = new Windows(device, this.traffic.order);
    this.storage = new StateInMemory(device, optimizer, {
      allocate: allocateFilled.bind(null, device),
      tile: Math.min(tile, STREAMED_TILE),
      order: this.windows.down,
      windows: this.windows,
    });
    this.traffic.kernelControl.release();
    this.traffic.kernelControl = this.allocate(4, 'f32');
  }

  get bytes(): Bytes {
    const { traffic, windows } = this;
    return { device: traffic.kernelControl.bytes + windows.bytes, host: traffic.bytes, disk: 0 };
  }

  allocate(numel: number, dtype: DType): Tensor {
    const { device, traffic } = this;
    const out = held(() => Tensor.empty([numel], dtype, device));
    zeroRange(out, { offset: 0, numel });
    traffic.order.wait(traffic.computed.record(device.compute));
    return out;
  }

  masterMemory({ numel }: Partition): Tensor {
    return allocatePinned(this.device, [numel], 'f32');
  }

  synchronize(): void {
    this.traffic.synchronize();
    this.windows.synchronize();
  }

  dispose(): void {
    this.traffic.dispose();
    this.windows.dispose();
  }
}
