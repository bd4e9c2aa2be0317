// Units: one flat buffer of weights with the parameters as views of it. Trained units also have a
// flat gradient. partition.ts has the range of a unit that a rank stores and updates.

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
  /** Index of its optimizer group, or FROZEN. */
  group: number;
}

/** The group index of parameters that no optimizer updates. */
export const FROZEN = -1;

export interface UnitOptions {
  /** Dtype of the weights. */
  dtype: DType;
  device: Device;
  /** Layout of the parameters in the flat buffers. */
  layout?: LayoutOptions;
}

/** A unit that may be frozen. A frozen unit has no gradient. */
export type WeightUnit = Unit<UnitGradient | null>;

/**
 * The parameters that are gathered together. Owns the flat weights on the device while they are
 * gathered, and the gradient if the unit is trained.
 */
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

  /** Flat weights in the unit's dtype. Throws DS_RELEASED if the weights are not gathered. */
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

  /** Allocates the flat weights. They are uninitialized, except for zeros between parameters. */
  allocate(): Tensor {
    this.flat = allocateFlat(this);
    return this.flat;
  }

  /**
   * Takes ownership of `flat` [numel], and makes the parameters views of it. The caller fills it.
   */
  materialize(flat: Tensor): void {
    this.flat = flat;
    const { buffer, dtype, offset } = flat;
    for (const entry of this.layout.entries) {
      this.parameterOf(entry).place({ buffer, dtype, offset: offset + entry.offset });
    }
  }

  /**
   * Frees the weights in the order of compute. The parameters have no values until materialize().
   */
  vacate(): void {
    for (const { parameter } of this.parameters) parameter.vacate(this.name);
    this.dropWeights();
  }

  /** Marks the weights as changed. A backward that saved the old values then throws. */
  markChanged(): void {
    for (const { parameter } of this.parameters) markChanged(parameter);
  }

  parameterOf(entry: LayoutEntry): Parameter {
    return required(this.byName.get(entry.name));
  }

  /**
   * Makes the parameter of `entry` a view of the flat weights, and its gradient a view of the flat
   * gradient. Later writes to the parameter by other code throw, because the next update would
   * overwrite them.
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

  /** The flat weights, or null if they are not gathered. */
  get memory(): Tensor | null {
    return this.flat;
  }

  /** Returns whether the tensor is in the memory of the flat weights or of the gradient. */
  holds({ buffer }: Tensor): boolean {
    return this.flat?.buffer === buffer || (this.gradient?.holds(buffer) ?? false);
  }

  private dropWeights(): void {
    this.flat?.release();
    this.flat = null;
  }
}

/** Returns uninitialized memory [numel] for the parameters of a unit, with zeros between them. */
function allocateFlat({ layout, dtype, device }: WeightUnit): Tensor {
  const flat = held(() => Tensor.empty([layout.numel], dtype, device));
  for (const gap of layout.gaps) zeroRange(flat, gap);
  return flat;
}

/** Receives events of a unit's gradients. The gradient collector implements it. */
export interface UnitListener {
  /** Called when the gradient of one parameter in this backward is complete. */
  onGradient(): void;
  /** Called once per backward, when the gradients of all parameters are complete. */
  onComplete(unit: WeightUnit): void;
  /**
   * Called for a gradient that arrives after finish(). If a new backward has started, the listener
   * calls expect().
   */
  onUnexpected(): void;
}

/**
 * The gradient of a unit, from its first gradient in a step until drop(). Backward writes
 * `parameter.grad`, views of one flat buffer, and adds micro-batches there. If the sum has another
 * dtype (data_types.grad_accum_dtype), the gradient of each backward is added to a separate sum and
 * freed. All work is enqueued on the compute stream.
 */
export class UnitGradient {
  /** [numel] in the parameters' dtype. */
  private backwardGrad: Tensor | null = null;
  /** [numel] in `dtype`. Null if the sum has the dtype of the parameters. */
  private sum: Tensor | null = null;
  private listener: UnitListener | null = null;
  private readonly awaited = new Set<Parameter>();
  /** Whether all gradients of the last backward are complete. */
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

  /** The gradient that backward writes. If the sum is separate, also the sum. */
  get memory(): { backwardGrad: Tensor | null; sum: Tensor | null } {
    const { backwardGrad, sum } = this;
    return { backwardGrad, sum };
  }

  /** Returns whether `buffer` is memory of this gradient. */
  holds(buffer: Buffer): boolean {
    return this.backwardGrad?.buffer === buffer || this.sum?.buffer === buffer;
  }

  /** Makes the flat gradient the memory of the parameter's gradient. */
  adoptParameter(parameter: Parameter, entry: LayoutEntry): void {
    setGradTarget(parameter, () => this.memoryFor(entry));
    parameter.onGradReady = () => this.countGradient(parameter);
  }

  /** Sends events of later backwards to `listener`. */
  reportTo(listener: UnitListener): void {
    this.listener = listener;
  }

  /**
   * Starts a backward: every parameter is expected to get a gradient. With `streaming`, the unit is
   * complete after the last of them. Without it, the unit is complete at finish(), so several
   * backwards may follow each other.
   */
  expect({ streaming }: { streaming: boolean }): void {
    this.isComplete = false;
    this.isStreaming = streaming;
    for (const { parameter } of this.unit.parameters) {
      if (parameter.requiresGrad) this.awaited.add(parameter);
    }
  }

  /** Ends a backward. Parameters without a gradient get zeros, and the unit is complete. */
  finish(): void {
    if (this.isComplete) return;
    this.awaited.clear();
    this.complete();
  }

  /** Drops a failed backward and its gradients. */
  forget(): void {
    this.awaited.clear();
    this.isComplete = true;
    this.drop();
  }

  /**
   * Returns the sum of all backwards since drop(), [numel] in `dtype`. It is zero if there were no
   * gradients. The caller releases it.
   */
  take(): Tensor {
    if (!(this.isWide ? this.sum : this.backwardGrad)) this.close();
    return (this.sum ?? this.allocateOnce()).retain();
  }

  /** Frees the gradient. Afterwards `parameter.grad` is null, which counts as zero. */
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

  /**
   * Ends the gradient of one backward: parameters without a gradient get zeros, and a separate sum
   * is updated.
   */
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
