// Units: parameters as views of one flat buffer of weights, and for trained units the flat
// gradient.
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
import { noteChanged } from '../tensor/tape.js';
import { type LayoutEntry, type LayoutOptions, layoutUnit, type UnitLayout } from './layout.js';

export interface UnitParameter {
  name: string;
  parameter: Parameter;
  /** Index of its optimizer group; FROZEN without one. */
  group: number;
}

/** The group of parameters without an optimizer. */
export const FROZEN = -1;

interface WeightUnitOptions {
  /** Of the weights. */
  dtype: DType;
  device: Device;
  /** Layout of the parameters in the flat buffers. */
  layout?: LayoutOptions;
}

/** Owns the flat weights (in the unit's dtype, on the device) while they are gathered. */
export class WeightUnit {
  readonly layout: UnitLayout;
  readonly dtype: DType;
  readonly device: Device;
  private flat: Tensor | null = null;

  constructor(
    readonly name: string,
    /** The module that reads these weights in its forward. */
    readonly module: Module,
    readonly parameters: readonly UnitParameter[],
    { dtype, device, layout }: WeightUnitOptions,
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
  }

  /** Flat weights in the unit's dtype. Throws DS_RELEASED if they are not gathered. */
  get weights(): Tensor {
    if (this.flat) return this.flat;
    throw new DsError({
      code: 'DS_RELEASED',
      op: `unit ${this.name}`,
      expected: 'its weights on this rank',
      got: 'a shard of them',
      hint: 'Use them inside the forward of their module.',
    });
  }

  get hasWeights(): boolean {
    return this.flat !== null;
  }

  /** Allocates the flat weights, uninitialized except for zeros between parameters. */
  allocate(): Tensor {
    const { dtype, device, layout } = this;
    const flat = held(() => Tensor.empty([layout.numel], dtype, device));
    for (const gap of layout.gaps) zeroRange(flat, gap);
    this.flat = flat;
    return flat;
  }

  /**
   * Makes the parameters views of `flat` [numel], which the caller fills. The unit takes ownership.
   */
  materialize(flat: Tensor): void {
    this.flat = flat;
    const { buffer, dtype, offset } = flat;
    for (const entry of this.layout.entries) {
      this.parameterOf(entry).place({ buffer, dtype, offset: offset + entry.offset });
    }
  }

  /**
   * Frees the flat weights in the order of the compute stream. The parameters have no values until
   * materialize().
   */
  vacate(): void {
    for (const { parameter } of this.parameters) parameter.vacate(this.name);
    this.dropWeights();
  }

  /** Marks its weights as changed, in any memory: a backward that saved the old values throws. */
  noteChanged(): void {
    for (const { parameter } of this.parameters) noteChanged(parameter);
  }

  parameterOf(entry: LayoutEntry): Parameter {
    return required(this.parameters.find((p) => p.name === entry.name)).parameter;
  }

  /**
   * Makes the parameter of `entry` a view of the flat weights. Later writes to it by other code
   * would be lost, so they throw.
   */
  own(entry: LayoutEntry): void {
    const parameter = this.parameterOf(entry);
    const slice = sliceFlat(this.weights, entry, entry.shape);
    parameter.place(slice);
    slice.release();
    claim(parameter, this);
  }

  dispose(): void {
    for (const { parameter } of this.parameters) disclaim(parameter, this);
    this.dropWeights();
  }

  /** Bytes of allocated weights and gradients. */
  get bytes(): { weights: number; gradients: number } {
    const size = this.layout.numel * dtypeSize(this.dtype);
    return { weights: this.flat ? size : 0, gradients: 0 };
  }

  /** Whether `part` lies in the flat weights. */
  holds({ buffer }: Tensor): boolean {
    return this.flat?.buffer === buffer;
  }

  private dropWeights(): void {
    this.flat?.release();
    this.flat = null;
  }
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
 * The gradient of a unit, from the first one of an accumulation step until drop(). Backward writes
 * to `parameter.grad`, views of one flat buffer. Micro-batches add up there if the sum has the
 * parameters' dtype. Else each backward's gradient is added to an f32 sum and freed, so
 * `parameter.grad` is null between backwards (DeepSpeed's data_types.grad_accum_dtype).
 * All work is enqueued on the compute stream.
 */
class UnitGradient {
  /** [numel] in the parameters' dtype. */
  private written: Tensor | null = null;
  /** [numel] in `dtype`, if that is not the parameters'. */
  private sum: Tensor | null = null;

  constructor(
    private readonly shape: GradientShape,
    /** The dtype of take(). */
    readonly dtype: DType,
  ) {}

  /** Allocated bytes. */
  get bytes(): number {
    return (this.written?.bytes ?? 0) + (this.sum?.bytes ?? 0);
  }

  /** Whether `buffer` is part of it. */
  holds(buffer: Buffer): boolean {
    return this.written?.buffer === buffer || this.sum?.buffer === buffer;
  }

  /**
   * Returns the memory for a parameter's first gradient: its shape and dtype, uninitialized, with a
   * reference.
   */
  memoryFor(entry: LayoutEntry): Tensor {
    return sliceFlat(this.allocated(), entry, entry.shape);
  }

  /** Called at the end of a backward: parameters without a gradient count as zero. */
  close(): void {
    const { layout, parameters } = this.shape;
    for (const [i, entry] of layout.entries.entries()) {
      if (required(parameters[i]).grad === null) zeroRange(this.allocated(), entry);
    }
    if (!this.isWide) return;
    const written = this.allocated().retain();
    this.dropWritten();
    if (this.sum) kernels.accumulate({ in: written, out: this.sum });
    else this.sum = held(() => cast(written, this.dtype));
    written.release();
  }

  /**
   * Returns the sum of all backwards since drop(), [numel], with a new reference; zeros if there
   * was none.
   */
  take(): Tensor {
    if (!(this.isWide ? this.sum : this.written)) this.close();
    return (this.sum ?? this.allocated()).retain();
  }

  /** Frees it. `parameter.grad` is null (zero) afterwards. */
  drop(): void {
    this.dropWritten();
    this.sum?.release();
    this.sum = null;
  }

  private get isWide(): boolean {
    return this.dtype !== this.shape.dtype;
  }

  private dropWritten(): void {
    for (const parameter of this.shape.parameters) {
      parameter.grad?.release();
      parameter.grad = null;
    }
    this.written?.release();
    this.written = null;
  }

  private allocated(): Tensor {
    const { layout, dtype, device } = this.shape;
    if (!this.written) {
      this.written = held(() => Tensor.empty([layout.numel], dtype, device));
      for (const gap of layout.gaps) zeroRange(this.written, gap);
    }
    return this.written;
  }
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

/** A trained unit: its weights, and the gradient that backward fills. */
export class Unit extends WeightUnit {
  readonly gradient: UnitGradient;
  private listener: UnitListener | null = null;
  private readonly waiting = new Set<Parameter>();
  /** Every gradient of the last backward is complete. */
  private ready = true;
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
    const shape = { layout, parameters: ordered, dtype, device };
    this.gradient = new UnitGradient(shape, gradDtype ?? dtype);
  }

  /** Dtype of the sum of gradients. */
  get gradDtype(): DType {
    return this.gradient.dtype;
  }

  /** Also makes the flat gradient the memory of the parameter's gradients. */
  override own(entry: LayoutEntry): void {
    super.own(entry);
    const parameter = this.parameterOf(entry);
    setGradTarget(parameter, () => this.gradMemory(entry));
    parameter.onGradReady = (leaf) => this.arrived(leaf as Parameter);
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
