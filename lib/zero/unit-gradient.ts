// The gradient of a unit: the memory that backward writes, and the sum over micro-batches.
import type { Parameter } from '../nn/parameter.js';
import type { Buffer } from '../runtime/buffer.js';
import type { Device } from '../runtime/device.js';
import type { DType } from '../runtime/dtype.js';
import * as kernels from '../runtime/kernels.generated.js';
import { cast, held, Tensor } from '../tensor/index.js';
import { sliceFlat, zeroRange } from './flat.js';
import type { LayoutEntry, UnitLayout } from './layout.js';

/** Chosen once per unit. All work is enqueued on the compute stream. */
export interface UnitGradient {
  /** The dtype of take(). */
  readonly dtype: DType;
  /** Allocated bytes. */
  readonly bytes: number;
  /** Whether `buffer` is part of it. */
  holds(buffer: Buffer): boolean;
  /**
   * Returns the memory for a parameter's first gradient: its shape and dtype, uninitialized, with a
   * reference.
   */
  memoryFor(entry: LayoutEntry): Tensor;
  /** Called at the end of a backward: parameters without a gradient count as zero. */
  close(): void;
  /**
   * Returns the sum of all backwards since drop(), [numel], with a new reference; zeros if there
   * was none.
   */
  take(): Tensor;
  /** Frees it. `parameter.grad` is null (zero) afterwards. */
  drop(): void;
}

interface GradientShape {
  layout: UnitLayout;
  /** In the order of the layout's entries. */
  parameters: readonly Parameter[];
  /** Of the parameters. */
  dtype: DType;
  device: Device;
}

/**
 * Sums in the parameters' dtype: backward adds each micro-batch to `parameter.grad`, views of one
 * flat buffer.
 */
class InPlaceGradient implements UnitGradient {
  readonly dtype: DType;
  private flat: Tensor | null = null;

  constructor(private readonly shape: GradientShape) {
    this.dtype = shape.dtype;
  }

  get bytes(): number {
    return this.flat?.bytes ?? 0;
  }

  holds(buffer: Buffer): boolean {
    return this.flat?.buffer === buffer;
  }

  memoryFor(entry: LayoutEntry): Tensor {
    return sliceFlat(this.allocated(), entry, entry.shape);
  }

  close(): void {
    const { layout, parameters } = this.shape;
    for (const [i, entry] of layout.entries.entries()) {
      if ((parameters[i] as Parameter).grad === null) zeroRange(this.allocated(), entry);
    }
  }

  take(): Tensor {
    if (!this.flat) this.close();
    return this.allocated().retain();
  }

  drop(): void {
    for (const parameter of this.shape.parameters) {
      parameter.grad?.release();
      parameter.grad = null;
    }
    this.flat?.release();
    this.flat = null;
  }

  private allocated(): Tensor {
    const { layout, dtype, device } = this.shape;
    if (!this.flat) {
      this.flat = held(() => Tensor.empty([layout.numel], dtype, device));
      for (const gap of layout.gaps) zeroRange(this.flat, gap);
    }
    return this.flat;
  }
}

/**
 * Sums 16-bit gradients in f32: each backward's gradient is added to the sum and freed, so
 * `parameter.grad` is null between backwards. Source: DeepSpeed's data_types.grad_accum_dtype.
 */
class WideGradient implements UnitGradient {
  readonly dtype = 'f32';
  private sum: Tensor | null = null;

  constructor(private readonly written: UnitGradient) {}

  get bytes(): number {
    return this.written.bytes + (this.sum?.bytes ?? 0);
  }

  holds(buffer: Buffer): boolean {
    return this.sum?.buffer === buffer || this.written.holds(buffer);
  }

  memoryFor(entry: LayoutEntry): Tensor {
    return this.written.memoryFor(entry);
  }

  close(): void {
    this.written.close();
    const gradient = this.written.take();
    this.written.drop();
    if (this.sum) kernels.accumulate({ in: gradient, out: this.sum });
    else this.sum = held(() => cast(gradient, 'f32'));
    gradient.release();
  }

  take(): Tensor {
    if (!this.sum) this.close();
    return (this.sum as Tensor).retain();
  }

  drop(): void {
    this.written.drop();
    this.sum?.release();
    this.sum = null;
  }
}

/** Returns the gradient of a unit with sums in `sumDtype`: the parameters' dtype, or f32. */
export function unitGradient(shape: GradientShape, sumDtype: DType): UnitGradient {
  const inPlace = new InPlaceGradient(shape);
  return sumDtype === shape.dtype ? inPlace : new WideGradient(inPlace);
}
