// The step's verdict: gradient norm, clipping factor and overflow flag, computed on the device, read one step later.
import { Buffer } from '../../runtime/buffer.js';
import type { Device } from '../../runtime/device.js';
import * as kernels from '../../runtime/kernels.generated.js';
import { Event, Stream } from '../../runtime/stream.js';
import { held, Tensor } from '../../tensor/index.js';
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
  /** Mean over the step's micro-batches; null when the engine was told of none. */
  loss: number | null;
}

export interface ControlOptions {
  /** 0 disables clipping. */
  maxNorm: number;
  /** A non-finite gradient skips the update. */
  skipNonfinite: boolean;
}

/**
 * Owns one partial sum per rank and partition, the sum of the micro-batches' losses, the [4] control of the update
 * kernels and its copy on the host.
 */
export class StepControl {
  /** [4] f32 on the device, see GradientControl in csrc/ops/gradient_control.h. */
  readonly control: Tensor;
  /** [ranks, partitions] f32 */
  private readonly partials: Tensor;
  /** [1] f32 */
  private readonly lossSum: Tensor;
  private readonly onHost: Buffer;
  private readonly fetched: Event;
  /** Of its own, so that reading waits for `fetched` and not for later compute work. */
  private readonly reading: Stream;
  private readonly slots = new Map<Partition, Tensor>();
  private microBatches = 0;
  private pending = false;

  constructor(
    device: Device,
    private readonly stage: Stage,
    private readonly options: ControlOptions,
  ) {
    this.control = held(() => Tensor.empty([4], 'f32', device));
    const { partitions, rank, worldSize } = stage;
    const shape = [worldSize, partitions.length];
    this.partials = held(() => Tensor.empty(shape, 'f32', device));
    this.lossSum = held(() => Tensor.empty([1], 'f32', device));
    this.onHost = Buffer.allocatePinned(device, 5 * 4);
    this.fetched = new Event(device);
    this.reading = Stream.create(device);
    partitions.forEach((partition, i) => {
      const offset = rank * partitions.length + i;
      this.slots.set(partition, sliceFlat(this.partials, { offset, numel: 1 }));
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
    this.stage.shareSums(this.partials);
    const partials = sliceFlat(this.partials, { offset: 0, numel: this.partials.numel });
    kernels.gradientControl({
      partials,
      control: this.control,
      lossScale: gradientScale,
      maxNorm,
      skipNonfinite,
    });
    partials.release();
    const { compute } = this.control.device;
    this.onHost.copyFrom(
      this.control.buffer,
      { bytes: 16, from: this.control.offset * 4 },
      compute,
    );
    this.onHost.copyFrom(
      this.lossSum.buffer,
      { to: 16, from: this.lossSum.offset * 4, bytes: 4 },
      compute,
    );
    this.fetched.record(compute);
    this.pending = true;
  }

  /** The verdict of the last decide(), once; null when it was taken before. Blocks until the backward has ended. */
  take(): Verdict | null {
    if (!this.pending) return null;
    this.pending = false;
    this.fetched.synchronize();
    const host = new Float32Array(5);
    this.onHost.read(0, host, this.reading);
    const [, applied, norm, finite, sum] = host as unknown as [
      number,
      number,
      number,
      number,
      number,
    ];
    const loss = this.microBatches > 0 ? sum / this.microBatches : null;
    this.microBatches = 0;
    return { applied: applied !== 0, norm, finite: finite !== 0, loss };
  }

  dispose(): void {
    for (const slot of this.slots.values()) slot.release();
    this.control.release();
    this.partials.release();
    this.lossSum.release();
    this.fetched.synchronize();
    this.fetched.dispose();
    this.reading.dispose();
    this.onHost.release();
  }
}
