// State in pinned host memory that the device updates, whose master weights are split: the upper
// half is its own bf16 weights.
import { halves, type SplitMaster } from '../../optim/split-master.js';
import type { Device } from '../../runtime/device.js';
import { Event, type Stream } from '../../runtime/stream.js';
import { held, Tensor } from '../../tensor/index.js';
import { sliceFlat } from '../flat.js';
import type { Piece } from '../layout.js';
import type { Partition } from '../partition.js';
import type { HostHomeOptions, OpenTile } from './host-home.js';
import type { Bytes, LentState } from './lent-state.js';
import { SplitPieces } from './split-pieces.js';
import { StreamedHome } from './streamed-home.js';
import type { HostTile, Tile } from './tiles.js';

/** Masters in halves, wherever the upper ones are. What is lent of them is an f32 copy. */
export abstract class StreamedHalves extends StreamedHome {
  override readonly lendsCopies = true;
  private readonly pieces: SplitPieces;

  /** `rule` is of partitions with bf16 weights. */
  constructor(device: Device, rule: SplitMaster, options: HostHomeOptions) {
    super(device, rule, options);
    this.pieces = new SplitPieces(device, rule, (partition) => this.partOf(partition));
  }

  override writeMaster(partition: Partition, piece: Piece, values: Tensor): void {
    this.pieces.write(partition, piece, values, this.device.compute);
    this.windows.followCompute();
  }

  override lend(partition: Partition, piece: Piece, name: string): LentState {
    if (name !== 'master') return super.lend(partition, piece, name);
    // Halves are in two places, which change in orders of their own.
    this.synchronize();
    return this.pieces.lend(partition, piece, this.host);
  }
}

/** Lower halves in place of masters: of these, they alone stream. */
export function withLowerHalves({ state }: Tile): OpenTile {
  const { [halves.low]: low, ...rest } = state;
  return { master: (low as Tensor).retain(), state: rest };
}

/**
 * What both kinds of weights have in common. Gradients stay in the memory that backward wrote, from
 * receive() to the update's end: they grow while activations go.
 */
abstract class SplitAndStreamed extends StreamedHalves {
  /** Compute has read the gradients that are given back. */
  private readonly read: Event;

  /** `rule` updates its partitions. */
  constructor(device: Device, rule: SplitMaster, options: HostHomeOptions) {
    super(device, rule, options);
    this.read = new Event(device);
  }

  protected override gradFor({ unit, device }: Partition): Tensor {
    return held(() => Tensor.empty([0], unit.gradDtype, device));
  }

  override receive(partition: Partition): void {
    this.d2h.wait(partition.ready);
    for (const { arrived } of this.tilesOf(partition)) arrived.record(this.d2h);
  }

  protected override landedIn({ grad }: Partition): Tensor {
    return grad as Tensor;
  }

  override gradOf({ grad }: Partition): Tensor | null {
    return grad && sliceFlat(grad, { offset: 0, numel: grad.numel });
  }

  override finish(partition: Partition): Stream {
    this.dropGrad(partition);
    return super.finish(partition);
  }

  /** Its memory is free once updates have read it. */
  protected dropGrad(partition: Partition): void {
    partition.grad?.buffer.sharedWith(this.host, this.read);
    partition.dropGrad();
  }

  protected override masterFor({ weights }: Partition): Tensor {
    return weights.retain();
  }

  protected override weightFor({ weights }: Partition): Tensor {
    return weights.retain();
  }

  /** The weights are half of the masters: whoever changes these changes them. */
  override refresh(): void {
    this.synchronize();
  }

  /** The weights are not its own. */
  override get bytes(): Bytes {
    const weights = [...this.parts.keys()].reduce((sum, one) => sum + one.weights.bytes, 0);
    const all = super.bytes;
    return { ...all, device: all.device - weights };
  }

  override dispose(): void {
    super.dispose();
    this.read.dispose();
  }
}

/**
 * What StreamedHome does with 10 bytes and a bit each way for a parameter, not 12: moments and
 * lower halves stream, and weights are updated where the model has them. Host memory: as many
 * bytes. For updates after the step decision: the weights are those of the last one.
 */
export class StreamedSplitHome extends SplitAndStreamed {
  protected override streamed(_: Partition, tile: Tile): OpenTile {
    return withLowerHalves(tile);
  }

  override open(partition: Partition, tile: Tile): OpenTile {
    const { master: low, state } = super.open(partition, tile);
    const master = sliceFlat(partition.weights, tile.range);
    return { master, state: { ...state, [halves.low]: low } };
  }

  override close({ master, state }: OpenTile, changed: boolean): void {
    super.close({ master: state[halves.low] as Tensor, state }, changed);
    master.release();
  }

  /** Weights are where they are wanted. */
  protected override upload(_: Partition, { updated }: HostTile): void {
    this.h2d.wait(updated);
  }
}

/**
 * The same of weights that stage 3 keeps in host memory (offload_param: cpu): they come and go with
 * the rest of their masters, 12 bytes and a bit each way, and nothing more leaves.
 */
export class StreamedSplitHomeOfOffloadedWeights extends SplitAndStreamed {
  protected override upload(): void {}

  override finish(partition: Partition): Stream {
    this.dropGrad(partition);
    const { down } = this.windows;
    this.partOf(partition).uploaded.record(down);
    return down;
  }
}
