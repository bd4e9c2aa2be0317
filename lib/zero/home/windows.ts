// Windows: device memory that tiles of state in host memory come to for an update, and leave.
import { Buffer } from '../../runtime/buffer.js';
import type { Device } from '../../runtime/device.js';
import { dtypeSize } from '../../runtime/dtype.js';
import { Event, Stream } from '../../runtime/stream.js';
import { held, Tensor } from '../../tensor/index.js';
import { copyAll } from '../flat.js';
import type { OpenTile } from './host-home.js';
import type { Tile } from './tiles.js';

/** While one is computed, the next comes into the other, which the last one leaves before. */
const COUNT = 2;

/** Tensors begin at multiples of it in a window, for loads of any width. */
const ALIGNMENT = 256;

interface Window {
  memory: Buffer;
  /** Whose state it had last, and where that is in host memory. */
  tile: Tile | null;
  kept: OpenTile | null;
  /** What kernels see of it while it is open. */
  opened: OpenTile | null;
  readonly filled: Event;
  readonly computed: Event;
  /** Nothing reads or writes it any more, and host memory has what was changed. */
  readonly left: Event;
}

/**
 * Three streams, ordered by events alone: tiles come up the first, kernels run in the second, which
 * is the caller's, and tiles leave by the third, while the next one comes: PCIe carries both at
 * once. One tile is open at a time.
 */
export class Windows {
  /** In whose order changed state is in host memory. */
  readonly down: Stream;
  private readonly up: Stream;
  private readonly windows: Window[] = [];
  private readonly written: Event;
  private turn = 0;

  constructor(
    private readonly device: Device,
    /** In which kernels run. */
    private readonly updates: Stream,
  ) {
    this.up = Stream.create(device, 'state to the device', 'bulk');
    this.down = Stream.create(device, 'state to the host', 'bulk');
    this.written = new Event(device);
  }

  /** Makes room for tiles like this one. Comes before a tile is opened. */
  makeRoom(state: OpenTile): void {
    const bytes = tensorsOf(state).reduce((sum, one) => sum + alignUp(one.bytes), 0);
    if (bytes <= (this.windows[0]?.memory.bytes ?? 0)) return;
    for (const { memory } of this.windows) memory.release();
    const { device } = this;
    for (let i = 0; i < COUNT; ++i) {
      const memory = Buffer.allocate(device, bytes);
      const window = this.windows[i];
      if (window) window.memory = memory;
      else {
        this.windows.push({
          ...{ memory, tile: null, kept: null, opened: null },
          ...{ filled: new Event(device), computed: new Event(device), left: new Event(device) },
        });
      }
    }
    this.followCompute();
  }

  /** Tiles that come from now on have what compute work so far has written to host memory. */
  followCompute(): void {
    this.up.wait(this.written.record(this.device.compute));
  }

  /**
   * Work enqueued on the updates' stream from now on sees the state of `tile`, which lies in
   * `kept`; that is taken over.
   */
  open(tile: Tile, kept: OpenTile): OpenTile {
    const { up } = this;
    const window = this.windows[this.turn] as Window;
    this.turn = (this.turn + 1) % COUNT;
    up.wait(window.left);
    // Its own last update may still be on its way down, from the other window.
    for (const one of this.windows) if (one.tile === tile) up.wait(one.left);
    const opened = placeIn(window.memory, kept);
    for (const [to, from] of pairs(opened, kept)) copyAll(to, from, up);
    this.updates.wait(window.filled.record(up));
    Object.assign(window, { tile, kept, opened });
    return opened;
  }

  /** Its state goes back where it came from, if it was changed. */
  close({ master }: OpenTile, changed: boolean): void {
    const window = this.windows.find(({ opened }) => opened?.master === master) as Window;
    const [kept, opened] = [window.kept as OpenTile, window.opened as OpenTile];
    const last = changed ? this.down : this.updates;
    if (changed) {
      last.wait(window.computed.record(this.updates));
      for (const [from, to] of pairs(opened, kept)) copyAll(to, from, last);
    }
    window.left.record(last);
    for (const tensor of tensorsOf(opened)) tensor.release();
    kept.master.release();
    Object.assign(window, { kept: null, opened: null });
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

const alignUp = (bytes: number): number => Math.ceil(bytes / ALIGNMENT) * ALIGNMENT;

const tensorsOf = ({ master, state }: OpenTile): Tensor[] => [master, ...Object.values(state)];

function pairs(a: OpenTile, b: OpenTile): [Tensor, Tensor][] {
  const others = tensorsOf(b);
  return tensorsOf(a).map((tensor, i) => [tensor, others[i] as Tensor]);
}

/** Tensors like those of `kept` in a window, one after the other. */
function placeIn(memory: Buffer, { master, state }: OpenTile): OpenTile {
  let end = 0;
  const next = ({ dtype, numel, bytes }: Tensor): Tensor => {
    const first = end / dtypeSize(dtype);
    end += alignUp(bytes);
    return held(() => new Tensor(memory.retain(), dtype, [numel], undefined, first));
  };
  const first = next(master);
  const rest = Object.entries(state).map(([name, tensor]) => [name, next(tensor)] as const);
  return { master: first, state: Object.fromEntries(rest) };
}
