// StateInMemory: the optimizer state of partitions in device or host memory, for the placements
// device, host and streamed.
import type { Optimizer } from '../../optim/optimizer.js';
import type { Device } from '../../runtime/device.js';
import { required } from '../../runtime/required.js';
import type { Stream } from '../../runtime/stream.js';
import { copyFlat } from '../../tensor/flat.js';
import type { Tensor } from '../../tensor/index.js';
import type { Fragment, Range } from '../layout.js';
import type { Partition } from '../partition.js';
import { LentState } from './memory.js';
import type { ShardPart, StateStorage } from './strategies.js';
import {
  type Allocate,
  allocateState,
  createTiles,
  disposeTile,
  namedFragment,
  stateTensors,
} from './tiles.js';

interface MemoryOptions {
  allocate: Allocate;
  /** Maximum elements per tile. */
  tile: number;
  /** The stream that orders changes of the state. */
  order: Stream;
  windows?: { followCompute(): void; synchronize(): void };
}

export class StateInMemory implements StateStorage {
  readonly order: Stream;
  readonly lendsCopies = false;

  constructor(
    private readonly device: Device,
    private readonly optimizer: Optimizer,
    private readonly options: MemoryOptions,
  ) {
    this.order = options.order;
  }

  stateOf(partition: Partition): Pick<ShardPart, 'ranges' | 'tiles'> {
    const { device, optimizer } = this;
    const { tile: size, allocate } = this.options;
    const ranges = allocateState(partition, optimizer, allocate);
    return { ranges, tiles: createTiles(ranges, optimizer, { device, size, allocate }) };
  }

  tensorsOf({ ranges }: ShardPart): Tensor[] {
    return stateTensors(ranges);
  }

  writeMaster({ master }: ShardPart, fragment: Fragment, values: Tensor): void {
    const all = { offset: 0, numel: fragment.numel };
    copyFlat(required(master), fragment, values, all, this.device.compute);
    this.followCompute();
  }

  followCompute(): void {
    this.options.windows?.followCompute();
  }

  lend({ master, ranges }: ShardPart, fragment: Fragment, name: string): LentState {
    const { optimizer } = this;
    const lent = namedFragment({ optimizer, master: required(master), ranges }, fragment, name);
    return new LentState(lent, this.order, () => this.followCompute());
  }

  /** Calls `body` once, with the masters of the whole partition. */
  forEachMaster({ master }: ShardPart, body: (master: Tensor, range: Range) => void): void {
    this.options.windows?.synchronize();
    const all = required(master);
    body(all, { offset: 0, numel: all.numel });
  }

  release({ ranges, tiles }: ShardPart): void {
    for (const tile of tiles) disposeTile(tile);
    for (const tensor of stateTensors(ranges)) tensor.release();
  }
}
