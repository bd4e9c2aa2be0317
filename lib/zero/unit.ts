// A trained unit: flat weights, the flat gradient that backward fills, and its sum.
import { DsError } from '../errors.js';
import type { Module } from '../nn/module.js';
import type { Parameter } from '../nn/parameter.js';
import type { Buffer } from '../runtime/buffer.js';
import type { Device } from '../runtime/device.js';
import type { DType } from '../runtime/dtype.js';
import * as kernels from '../runtime/kernels.generated.js';
import { sliceFlat, zeroRange } from '../tensor/flat.js';
import { cast, held, setGradTarget, Tensor } from '../tensor/index.js';
import type { LayoutEntry, Range, UnitLayout } from './layout.js';
import {
  type InitialValues,
  type UnitParameter,
  WeightUnit,
  type WeightUnitOptions,
} from './weight-unit.js';

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

export interface UnitOptions extends WeightUnitOptions {
  /**
   * Dtype of gradient sums over micro-batches: `dtype`, the dtype of backward, or f32. Default:
   * `dtype`.
   */
  gradDtype?: DType;
}

/** Receives events of a unit's gradients. */
export interface UnitListener {
  /** A parameter's gradient of this backward is complete. */
  reached(): void;
  /** Once per backward: every parameter's gradient is complete. */
  completed(unit: Unit): void;
  /** A gradient arrived after finish(). If a backward starts now, the listener calls expect(). */
  unexpected(): void;
}

/**
 * The flat gradient exists from the first gradient in an accumulation step until it is dropped
 * (unit-gradient.ts).
 */
export class Unit extends WeightUnit {
  /**
   * From the first gradient of an accumulation step until drop(). Unused parameters count as zero.
   */
  readonly gradient: UnitGradient;
  private listener: UnitListener | null = null;
  private readonly waiting = new Set<Parameter>();
  private ready = false;
  private streaming = true;

  constructor(
    name: string,
    module: Module,
    parameters: readonly UnitParameter[],
    { gradDtype, ...options }: UnitOptions,
  ) {
    super(name, module, parameters, options);
    const { layout, dtype, device } = this;
    const ordered = layout.entries.map((entry) => this.parameterOf(entry));
    this.gradient = unitGradient(
      { layout, parameters: ordered, dtype, device },
      gradDtype ?? dtype,
    );
  }

  /** Dtype of the sum of gradients. */
  get gradDtype(): DType {
    return this.gradient.dtype;
  }

  /** Also makes the flat gradient the memory of the parameters' gradients. */
  override adopt(kept: Range, onInitial: (initial: InitialValues) => void): void {
    super.adopt(kept, onInitial);
    for (const entry of this.layout.entries) {
      const parameter = this.parameterOf(entry);
      setGradTarget(parameter, () => this.gradMemory(entry));
      parameter.onGradReady = (leaf) => this.arrived(leaf as Parameter);
    }
    this.ready = true;
  }

  /** Sends events of later backwards to `listener`. */
  reportTo(listener: UnitListener): void {
    this.listener = listener;
  }

  /**
   * Starts a backward: every gradient is expected again. Without `streaming`, the unit is complete
   * only at finish(), so several backwards may follow each other.
   */
  expect({ streaming = true } = {}): void {
    this.ready = false;
    this.streaming = streaming;
    for (const { parameter } of this.parameters) {
      if (parameter.requiresGrad) this.waiting.add(parameter);
    }
  }

  /** Ends a backward: parameters without a gradient get zeros, and the unit is ready. */
  finish(): void {
    if (this.ready) return;
    this.waiting.clear();
    this.complete();
  }

  /** Abandons a failed backward and its gradients. */
  forget(): void {
    this.waiting.clear();
    this.ready = true;
    this.gradient.drop();
  }

  override dispose(): void {
    this.gradient.drop();
    for (const { parameter } of this.parameters) {
      setGradTarget(parameter, null);
      parameter.onGradReady = null;
    }
    super.dispose();
  }

  override get bytes(): { weights: number; gradients: number } {
    return { ...super.bytes, gradients: this.gradient.bytes };
  }

  /** Whether `part` lies in the flat weights or in the gradient. */
  override holds(part: Tensor): boolean {
    return super.holds(part) || this.gradient.holds(part.buffer);
  }

  private gradMemory(entry: LayoutEntry): Tensor {
    if (this.ready) this.listener?.unexpected();
    if (this.ready) {
      throw new DsError({
        code: 'DS_AUTOGRAD',
        op: `unit ${this.name}`,
        expected: `all gradients of ${entry.name} before the unit's last one`,
        got: 'a gradient after the unit was complete',
        hint: 'A module used inside two checkpoint() calls of one forward is not supported.',
      });
    }
    return this.gradient.memoryFor(entry);
  }

  private arrived(parameter: Parameter): void {
    if (this.ready) this.listener?.unexpected();
    this.listener?.reached();
    this.waiting.delete(parameter);
    if (this.streaming && this.waiting.size === 0 && !this.ready) this.complete();
  }

  private complete(): void {
    this.gradient.close();
    this.ready = true;
    this.listener?.completed(this);
  }
}
