// State in pinned host memory whose master weights are split: their upper half is the bf16 weights,
// wherever the model has these.
import type { SplitMaster } from '../../optim/split-master.js';
import type { Device } from '../../runtime/device.js';
import type { Tensor } from '../../tensor/index.js';
import type { Piece } from '../layout.js';
import type { Partition } from '../partition.js';
import {
  HostHome,
  HostHomeOfOffloadedWeights,
  type HostHomeOptions,
  type OpenTile,
} from './host-home.js';
import type { Bytes, LentState } from './lent-state.js';
import { SplitPieces } from './split-pieces.js';
import type { HostTile, Tile } from './tiles.js';
import { WeightSlots } from './weight-slots.js';

/** Of tiles: larger ones cost more slots, smaller ones fill the driver's queues, see tileSize(). */
const LARGEST_TILE = 2 ** 26;

/**
 * Host memory per parameter: 8 bytes of moments, 2 bytes and a bit that restore the f32 master from
 * its bf16 weight, and one gradient element. The weights are the device's: a tile of them comes
 * down before its update, which overwrites it, and goes up again from there. For updates after the
 * decision: the weights on the device are those of the last one. What is lent of master weights is
 * an f32 copy.
 */
export class SplitHome extends HostHome {
  override readonly lendsCopies = true;
  private readonly pieces: SplitPieces;
  private readonly slots: WeightSlots;

  /** `rule` updates its partitions. */
  constructor(device: Device, rule: SplitMaster, options: HostHomeOptions) {
    super(device, rule, { ...options, tile: Math.min(options.tile, LARGEST_TILE) });
    this.pieces = new SplitPieces(device, rule, (partition) => this.partOf(partition));
    const { d2h: down, host: updates, h2d: up } = this;
    this.slots = new WeightSlots(device, { down, updates, up });
  }

  override adopt(partition: Partition): void {
    super.adopt(partition);
    for (const { range } of this.tilesOf(partition)) this.slots.makeRoom(range.numel);
  }

  protected override masterFor({ weights }: Partition): Tensor {
    return weights.retain();
  }

  protected override weightFor({ weights }: Partition): Tensor {
    return weights.retain();
  }

  override open(partition: Partition, tile: Tile): OpenTile {
    this.d2h.wait(this.partOf(partition).uploaded);
    return { master: this.slots.fetch(partition.weights, tile), state: tile.state };
  }

  protected override upload(partition: Partition, tile: HostTile): void {
    this.slots.send(partition.weights, tile);
  }

  override writeMaster(partition: Partition, piece: Piece, values: Tensor): void {
    this.pieces.write(partition, piece, values, this.device.compute);
  }

  override lend(partition: Partition, piece: Piece, name: string): LentState {
    if (name !== 'master') return super.lend(partition, piece, name);
    this.host.wait(this.partOf(partition).uploaded);
    return this.pieces.lend(partition, piece, this.host);
  }

  /** The weights are half of the masters: whoever changes these changes them. */
  override refresh(): void {
    this.host.synchronize();
  }

  /** The weights are not its own. */
  override get bytes(): Bytes {
    const weights = [...this.parts.keys()].reduce((sum, one) => sum + one.weights.bytes, 0);
    return { ...super.bytes, host: super.bytes.host - weights + this.slots.bytes };
  }

  override dispose(): void {
    super.dispose();
    this.slots.dispose();
  }
}

/**
 * The same of weights that stage 3 keeps in host memory (offload_param: cpu), where updates change
 * them: one reads and writes 26.25 bytes a parameter, not 28.
 */
export class SplitHomeOfOffloadedWeights extends HostHomeOfOffloadedWeights {
  override readonly lendsCopies = true;
  private readonly pieces: SplitPieces;

  /** `rule` updates its partitions. */
  constructor(device: Device, rule: SplitMaster, options: HostHomeOptions) {
    super(device, rule, options);
    this.pieces = new SplitPieces(device, rule, (partition) => this.partOf(partition));
  }

  protected override masterFor({ weights }: Partition): Tensor {
    return weights.retain();
  }

  override writeMaster(partition: Partition, piece: Piece, values: Tensor): void {
    this.pieces.write(partition, piece, values, this.device.compute);
  }

  override lend(partition: Partition, piece: Piece, name: string): LentState {
    if (name !== 'master') return super.lend(partition, piece, name);
    return this.pieces.lend(partition, piece, this.host);
  }

  override refresh(): void {
    this.host.synchronize();
  }
}
