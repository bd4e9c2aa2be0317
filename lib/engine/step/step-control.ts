// The step's verdict: gradient norm, clipping factor and overflow flag, computed on the device, read one step later.
import { Buffer } from '../../runtime/buffer.js';
import type { Device } from '../../runtime/device.js';
import * as kernels from '../../runtime/kernels.generated.js';
import { Event, Stream } from '../../runtime/stream.js';
import { held, Tensor, zeros } from '../../tensor/index.js';
import { sliceFlat } from '../../zero/flat.js';
import type { Partition } from '../../zero/partition.js';
import type { Stage } from '../../zero/stage.js';

/** What is known of a step once the device has finished its backward. */
export interface Verdict {
  /** Global L2 norm of the unscaled gradients, before clipping. */
  norm: number;
  finite: boolean;
  /** False when the update was skipped because of a non-finite gradient. */
  applied: boolean;
  /** Mean over the step's micro-batches and all ranks; null when the engine was told of none. */
  loss: number | null;
  /** Some rank wished to stop when it handed over its gradients. */
  stop: boolean;
}

export interface ControlOptions {
  /** 0 disables clipping. */
  maxNorm: number;
  /** A non-finite gradient skips the update. */
  skipNonfinite: boolean;
  /** Whether this rank wishes to stop. */
  wishesToStop(): boolean;
}

/** What a rank tells beside its partitions' sums of squares, behind them in its row. */
const LOSS = 0;
const STOP = 1;
const TOLD = 2;

/**
 * Owns a row per rank (a sum of squares per partition, the sum of the micro-batches' losses, the wish to stop), the [4]
 * control of the update kernels and the copy of both on the host.
 */
export class StepControl {
  /** [4] f32 on the device, see GradientControl in csrc/ops/gradient_control.h. */
  readonly control: Tensor;
  /** [ranks, partitions + 2] f32, every rank's row once they are shared */
  private readonly rows: Tensor;
  /** [ranks, partitions] f32, the rows' sums of squares */
  private readonly partials: Tensor;
  /** [1] f32 each, of this rank's row */
  private readonly lossSum: Tensor;
  private readonly stop: Tensor;
  private readonly onHost: Buffer;
  private readonly fetched: Event;
  /** Of its own, so that reading waits for `fetched` and not for later compute work. */
  private readonly reading: Stream;
  private readonly slots = new Map<Partition, Tensor>();
  private microBatches = 0;
  private isStopTold = false;
  private pending = false;

  constructor(
    device: Device,
    private readonly stage: Stage,
    private readonly options: ControlOptions,
  ) {
    this.control = held(() => Tensor.empty([4], 'f32', device));
    const { partitions, rank, worldSize } = stage;
    const width = partitions.length + TOLD;
    this.rows = held(() => zeros([worldSize, width], { device }));
    this.partials = held(() => this.rows.narrow(1, 0, partitions.length));
    const slot = (i: number) => sliceFlat(this.rows, { offset: rank * width + i, numel: 1 });
    this.lossSum = slot(partitions.length + LOSS);
    this.stop = slot(partitions.length + STOP);
    this.onHost = Buffer.allocatePinned(device, (4 + this.rows.numel) * 4);
    this.fetched = new Event(device);
    this.reading = Stream.create(device);
    partitions.forEach((partition, i) => {
      this.slots.set(partition, slot(i));
    });
  }

  /** Adds a partition's complete gradient to the norm, in the order of `stream`. */
  add(partition: Partition, stream: Stream): void {
    const x = sliceFlat(partition.grad as Tensor, partition.counted);
    kernels.sumOfSquares({ x, out: this.slots.get(partition) as Tensor }, stream);
    x.release();
  }

  /** Adds a micro-batch's loss, one f32 element, to the step's. */
  addLoss(loss: Tensor): void {
    const sum = sliceFlat(this.lossSum, { offset: 0, numel: 1 }, loss.shape);
    if (this.microBatches++ === 0) kernels.copy({ in: loss, out: sum });
    else kernels.binary({ a: sum, b: loss, out: sum, op: 'add', accumulate: false });
    sum.release();
  }

  /** Forgets the losses added since the last decide(). */
  dropLosses(): void {
    this.microBatches = 0;
  }

  /** Computes the control from all partitions' sums; the gradients carry the factor `gradientScale`. */
  decide(gradientScale: number): void {
    const { maxNorm, skipNonfinite } = this.options;
    this.tellStop();
    this.stage.shareSums(this.rows);
    kernels.gradientControl({
      partials: this.partials,
      control: this.control,
      lossScale: gradientScale,
      maxNorm,
      skipNonfinite,
    });
    const { compute } = this.control.device;
    const fetch = ({ buffer, offset, numel }: Tensor, to: number): void =>
      this.onHost.copyFrom(buffer, { to, from: offset * 4, bytes: numel * 4 }, compute);
    fetch(this.control, 0);
    fetch(this.rows, 16);
    this.fetched.record(compute);
    this.pending = true;
  }

  /** The verdict of the last decide(), once; null when it was taken before. Blocks until the backward has ended. */
  take(): Verdict | null {
    if (!this.pending) return null;
    this.pending = false;
    this.fetched.synchronize();
    const host = new Float32Array(4 + this.rows.numel);
    this.onHost.read(0, host, this.reading);
    const [, applied, norm, finite] = host as unknown as [number, number, number, number];
    const { losses, stop } = this.told(host.subarray(4));
    const loss = this.microBatches > 0 ? losses / (this.microBatches * this.stage.worldSize) : null;
    this.microBatches = 0;
    return { applied: applied !== 0, norm, finite: finite !== 0, loss, stop };
  }

  /** Lets the other ranks know, from this step on, that this one wishes to stop. */
  private tellStop(): void {
    if (this.isStopTold || !this.options.wishesToStop()) return;
    this.isStopTold = true;
    kernels.fill({ out: this.stop, value: 1 });
  }

  /** The sum of all ranks' losses, and whether any wishes to stop. */
  private told(rows: Float32Array): { losses: number; stop: boolean } {
    const { partitions } = this.stage;
    const width = partitions.length + TOLD;
    let losses = 0;
    let stop = false;
    for (let at = partitions.length; at < rows.length; at += width) {
      losses += rows[at + LOSS] as number;
      stop ||= rows[at + STOP] !== 0;
    }
    return { losses, stop };
  }

  dispose(): void {
    for (const slot of this.slots.values()) slot.release();
    this.control.release();
    this.partials.release();
    this.lossSum.release();
    this.stop.release();
    this.rows.release();
    this.fetched.synchronize();
    this.fetched.dispose();
    this.reading.dispose();
    this.onHost.release();
  }
}
