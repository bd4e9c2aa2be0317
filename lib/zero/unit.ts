// Units: parameters as views of one flat buffer of weights, and for trained units the flat
// gradient. partition.ts has the range of a unit that a rank stores and updates.

import { DsError } from '../errors.js';
import type { Module } from '../nn/module.js';
import type { Parameter } from '../nn/parameter.js';
import type { Buffer } from '../runtime/buffer.js';
import type { Device } from '../runtime/device.js';
import { type DType, dtypeSize } from '../runtime/dtype.js';
import * as kernels from '../runtime/kernels.generated.js';
import { required } from '../runtime/required.js';
import { sliceFlat, zeroRange } from '../tensor/flat.js';
import { cast, claim, disclaim, held, setGradTarget, Tensor } from '../tensor/index.js';
import { markChanged } from '../tensor/tape.js';
import { type LayoutEntry, type LayoutOptions, layoutUnit, type UnitLayout } from './layout.js';

export interface UnitParameter {
  name: string;
  parameter: Parameter;
  /** Index of its optimizer group; FROZEN without one. */
  group: number;
}

/** The group of parameters without an optimizer. */
export const FROZEN = -1;

export interface UnitOptions {
  /** Dtype of the weights. */
  dtype: DType;
  device: Device;
  /** Layout of the parameters in the flat buffers. */
  layout?: LayoutOptions;
}

/** A unit; its gradient is null if it is frozen. */
export type WeightUnit = Unit<UnitGradient | null>;

/** Owns the flat weights (on the device) while they are gathered, and the gradient if trained. */
export class Unit<Gradient extends UnitGradient | null = UnitGradient> {
  readonly layout: UnitLayout;
  readonly dtype: DType;
  readonly device: Device;
  /** Null in a frozen unit. */
  readonly gradient: Gradient;
  private readonly byName: ReadonlyMap<string, Parameter>;
  private flat: Tensor | null = null;

  constructor(
    readonly name: string,
    /** The module that reads these weights in its forward. */
    readonly module: Module,
    readonly parameters: readonly UnitParameter[],
    { dtype, device, layout }: UnitOptions,
    gradientOf: (unit: WeightUnit) => Gradient,
  ) {
    this.dtype = dtype;
    this.device = device;
    const shapes = parameters.map(({ name: parameterName, parameter, group }) => ({
      name: parameterName,
      shape: parameter.shape,
      group,
      region: parameter.region,
    }));
    this.layout = layoutUnit(shapes, layout);
    this.byName = new Map(parameters.map((parameter) => [parameter.name, parameter.parameter]));
    this.gradient = gradientOf(this);
  }

  /** Flat weights in the unit's dtype. Throws DS_RELEASED if they are not gathered. */
  get weights(): Tensor {
    if (this.flat) return this.flat;
    throw new DsError({
      code: 'DS_RELEASED',
      op: `unit ${this.name}`,
      expected: 'its weights on this rank',
      got: 'only the shard of this rank',
      hint: 'Use them inside the forward of their module.',
    });
  }

  /** Allocates the flat weights, uninitialized except for zeros between parameters. */
  allocate(): Tensor {
    this.flat = allocateFlat(this);
    return this.flat;
  }

  /** Makes the parameters views of `flat` [numel], which the caller fills. Takes ownership. */
  materialize(flat: Tensor): void {
    this.flat = flat;
    const { buffer, dtype, offset } = flat;
    for (const entry of this.layout.entries) {
      this.parameterOf(entry).place({ buffer, dtype, offset: offset + entry.offset });
    }
  }

  /** Frees the weights in the order of compute. Parameters have no values until materialize(). */
  vacate(): void {
    for (const { parameter } of this.parameters) parameter.vacate(this.name);
    this.dropWeights();
  }

  /** Marks its weights as changed, in any memory: a backward that saved the old values throws. */
  markChanged(): void {
    for (const { parameter } of this.parameters) markChanged(parameter);
  }

  parameterOf(entry: LayoutEntry): Parameter {
    return required(this.byName.get(entry.name));
  }

  /**
   * Makes the parameter of `entry` a view of the flat weights, and of the flat gradient. Later
   * writes to it by other code would be lost, so they throw.
   */
  adoptParameter(entry: LayoutEntry): void {
    const parameter = this.parameterOf(entry);
    const slice = sliceFlat(this.weights, entry, entry.shape);
    parameter.place(slice);
    slice.release();
    claim(parameter, this);
    this.gradient?.adoptParameter(parameter, entry);
  }

  dispose(): void {
    this.gradient?.dispose();
    for (const { parameter } of this.parameters) disclaim(parameter, this);
    this.dropWeights();
  }

  /** Bytes of allocated weights and gradients. */
  get bytes(): { weights: number; gradients: number } {
    const size = this.layout.numel * dtypeSize(this.dtype);
    return { weights: this.flat ? size : 0, gradients: this.gradient?.bytes ?? 0 };
  }

  /** The flat weights if they are gathered. */
  get memory(): Tensor | null {
    return this.flat;
  }

  /** Returns whether `part` lies in the flat weights or in the gradient. */
  holds({ buffer }: Tensor): boolean {
    return this.flat?.buffer === buffer || (this.gradient?.holds(buffer) ?? false);
  }

  private dropWeights(): void {
    this.flat?.release();
    this.flat = null;
  }
}

/** Returns uninitialized memory [numel] for all parameters of a unit, with zeros between them. */
function allocateFlat({ layout, dtype, device }: WeightUnit): Tensor {
  const flat = held(() => Tensor.empty([layout.numel], dtype, device));
  for (const gap of layout.gaps) zeroRange(flat, gap);
  return flat;
}

/** Receives events of a unit's gradients. */
export interface UnitListener {
  /** Called when a parameter's gradient of this backward is complete. */
  onGradient(): void;
  /** Called once per backward, when every parameter's gradient is complete. */
  onComplete(unit: WeightUnit): void;
  /**
   * Called for a gradient after finish(). If a backward starts now, the listener calls expect().
   */
  onUnexpected(): void;
}

/**
 * The gradient of a unit, from the first one of a step until drop(). Backward writes to
 * `parameter.grad`, views of one flat buffer, where micro-batches add up. If the sum has another
 * dtype (data_types.grad_accum_dtype), each backward's gradient is added to an f32 sum and freed.
 * All work is enqueued on the compute stream.
 */
export class UnitGradient {
  /** [numel] in the parameters' dtype. */
  private backwardGrad: Tensor | null = null;
  /** [numel] in `dtype`, if that is not the parameters'. */
  private sum: Tensor | null = null;
  private listener: UnitListener | null = null;
  private readonly awaited = new Set<Parameter>();
  /** Whether every gradient of the last backward is complete. */
  private isComplete = true;
  private isStreaming = true;

  constructor(
    private readonly unit: WeightUnit,
    /** Dtype of the sum over micro-batches: the unit's dtype, or f32. */
    readonly dtype: DType,
  ) {}

  /** Allocated bytes. */
  get bytes(): number {
    return (this.backwardGrad?.bytes ?? 0) + (this.sum?.bytes ?? 0);
  }

  /** The gradient that backward writes, and the sum of several backwards if it is separate. */
  get memory(): { backwardGrad: Tensor | null; sum: Tensor | null } {
    const { backwardGrad, sum } = this;
    return { backwardGrad, sum };
  }

  /** Returns whether `buffer` belongs to the gradient. */
  holds(buffer: Buffer): boolean {
    return this.backwardGrad?.buffer === buffer || this.sum?.buffer === buffer;
  }

  /** Makes the flat gradient the memory of the parameter's gradients. */
  adoptParameter(parameter: Parameter, entry: LayoutEntry): void {
    setGradTarget(parameter, () => this.memoryFor(entry));
    parameter.onGradReady = () => this.countGradient(parameter);
  }

  /** Sends events of later backwards to `listener`. */
  reportTo(listener: UnitListener): void {
    this.listener = listener;
  }

  /**
   * Starts a backward: every gradient is expected again. Without `streaming`, the unit is complete
   * only at finish(), so several backwards may follow each other.
   */
  expect({ streaming }: { streaming: boolean }): void {
    this.isComplete = false;
    this.isStreaming = streaming;
    for (const { parameter } of this.unit.parameters) {
      if (parameter.requiresGrad) this.awaited.add(parameter);
    }
  }

  /** Ends a backward: parameters without a gradient get zeros, and the unit is complete. */
  finish(): void {
    if (this.isComplete) return;
    this.awaited.clear();
    this.complete();
  }

  /** Abandons a failed backward and its gradients. */
  forget(): void {
    this.awaited.clear();
    this.isComplete = true;
    this.drop();
  }

  /**
   * Returns the sum of all backwards since drop(), [numel] in `dtype`; zeros without any. The
   * caller releases it.
   */
  take(): Tensor {
    if (!(this.isWide ? this.sum : this.backwardGrad)) this.close();
    return (this.sum ?? this.allocateOnce()).retain();
  }

  /** Frees the gradient. `parameter.grad` is null (zero) afterwards. */
  drop(): void {
    this.dropWritten();
    this.sum?.release();
    this.sum = null;
  }

  dispose(): void {
    this.drop();
    for (const { parameter } of this.unit.parameters) {
      setGradTarget(parameter, null);
      parameter.onGradReady = null;
    }
  }

  private memoryFor(entry: LayoutEntry): Tensor {
    if (this.isComplete) this.listener?.onUnexpected();
    if (this.isComplete) {
      throw new DsError({
        code: 'DS_AUTOGRAD',
        op: `unit ${this.unit.name}`,
        expected: `all gradients of ${entry.name} before the unit's last one`,
        got: 'a gradient after the unit was complete',
        hint: 'A module used inside two checkpoint() calls of one forward is not supported.',
      });
    }
    return sliceFlat(this.allocateOnce(), entry, entry.shape);
  }

  private countGradient(parameter: Parameter): void {
    if (this.isComplete) this.listener?.onUnexpected();
    this.listener?.onGradient();
    this.awaited.delete(parameter);
    if (this.isStreaming && this.awaited.size === 0 && !this.isComplete) this.complete();
  }

  private complete(): void {
    this.close();
    this.isComplete = true;
    this.listener?.onComplete(this.unit);
  }

  /** Ends the sum of a backward: parameters without a gradient count as zero. */
  private close(): void {
    const { unit } = this;
    for (const { name, parameter } of unit.parameters) {
      if (parameter.grad !== null) continue;
      const entry = required(unit.layout.entries.find((each) => each.name === name));
      zeroRange(this.allocateOnce(), entry);
    }
    if (!this.isWide) return;
    const written = this.allocateOnce().retain();
    this.dropWritten();
    if (this.sum) kernels.accumulate({ in: written, out: this.sum });
    else this.sum = held(() => cast(written, this.dtype));
    written.release();
  }

  private get isWide(): boolean {
    return this.dtype !== this.unit.dtype;
  }

  private dropWritten(): void {
    for (const { parameter } of this.unit.parameters) {
      parameter.grad?.release();
      parameter.grad = null;
    }
    this.backwardGrad?.release();
    this.backwardGrad = null;
  }

  private allocateOnce(): Tensor {
    this.backwardGrad ??= allocateFlat(this.unit);
    return this.backwardGrad;
  }
}
