// StreamedState: optimizer state in pinned host memory. The device updates it through two windows.
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

/** Alignment of tensors in a window, in bytes. It permits loads of any width. */
const ALIGNMENT = 256;

interface Window {
  memory: Buffer;
  /** The tile in the window, and its tensors in host memory. */
  tile: StateTile | null;
  hostTile: OpenTile | null;
  /** The tensors of the tile in the window, while the tile is open. */
  opened: OpenTile | null;
  readonly filled: Event;
  readonly computed: Event;
  /** Recorded when no work uses the window, and host memory has the changes. */
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
  /** The stream that writes changed state to host memory. */
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

  /** Enlarges the windows so that this tile fits. Call it before a tile is opened. */
  reserve(state: OpenTile): void {
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

  /** Makes later reads of tiles wait for host memory that compute work so far writes. */
  followCompute(): void {
    this.up.wait(this.written.record(this.device.compute));
  }

  /**
   * Copies a tile to the next window. Returns its tensors on the device, for later work on the
   * stream of updates. `storedOf` returns the tensors in host memory; the window owns them until
   * close().
   */
  open(tile: StateTile, storedOf: () => OpenTile): OpenTile {
    const { up } = this;
    const stored = storedOf();
    const window = required(this.windows[this.next]);
    this.next = (this.next + 1) % WINDOWS;
    up.wait(window.left);
    // The other window may still copy the last update of this tile to the host.
    for (const window of this.windows) if (window.tile === tile) up.wait(window.left);
    const opened = placeTensors(window.memory, stored);
    for (const [to, from] of pairTensors(opened, stored)) copyAll(to, from, up);
    this.updates.wait(window.filled.record(up));
    Object.assign(window, { tile, hostTile: stored, opened });
    return opened;
  }

  /** Ends open(). If kernels changed the tile, copies it back to host memory. */
  close({ master }: OpenTile, changed: boolean): void {
    const window = required(this.windows.find(({ opened }) => opened?.master === master));
    const [stored, opened] = [required(window.hostTile), required(window.opened)];
    const last = changed ? this.down : this.updates;
    if (changed) {
      last.wait(window.computed.record(this.updates));
      for (const [from, to] of pairTensors(opened, stored)) copyAll(to, from, last);
    }
    window.left.record(last);
    for (const tensor of tensorsOf(opened)) tensor.release();
    stored.master.release();
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

/** Returns tensors in a window, one after another, with the dtypes and sizes of `stored`. */
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

/** Maximum elements per tile: enough for the full rate of PCIe, few enough for small windows. */
const STREAMED_TILE = 2 ** 24;

/**
 * The streamed placement. The device updates on its own stream, in parallel with compute. It turns
 * gradients into weights there, so neither crosses PCIe. Device memory: one gradient element per
 * parameter, and two windows. Elementwise update rules only: see isByElement().
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
