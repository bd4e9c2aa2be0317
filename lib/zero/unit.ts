// A unit: parameters that move together, as views into one flat weight buffer and one flat gradient buffer.
import { DsError } from '../errors.js';
import type { Module } from '../nn/module.js';
import type { Parameter } from '../nn/parameter.js';
import type { Device } from '../runtime/device.js';
import { type DType, dtypeSize } from '../runtime/dtype.js';
import * as kernels from '../runtime/kernels.generated.js';
import { claim, disclaim, held, setGradTarget, Tensor } from '../tensor/index.js';
import { sliceFlat, zeroRange } from './flat.js';
import { layoutUnit, type Slot, type UnitLayout } from './layout.js';
import { type UnitGradient, unitGradient } from './unit-gradient.js';

export interface UnitParameter {
  name: string;
  parameter: Parameter;
  group: number;
}

export interface UnitOptions {
  /** Of the weights, and of what backward writes. */
  dtype: DType;
  /** In which gradients are summed over micro-batches: `dtype`, the default, or f32. */
  gradDtype?: DType;
  device: Device;
  /** Into how many equal parts the flat buffers can be cut. Default 1. */
  shards?: number;
}

/** Who follows a unit's gradients. */
export interface UnitListener {
  /** Once per backward: every parameter's gradient is complete. */
  completed(unit: Unit): void;
  /** A gradient comes after finish(): whoever starts a backward now calls expect(). */
  unexpected(): void;
}

/**
 * Owns the flat weights (weight dtype, on the device) while they are here. The flat gradient exists from the first gradient
 * written in an accumulation step until it is dropped (unit-gradient.ts).
 */
export class Unit {
  readonly layout: UnitLayout;
  readonly dtype: DType;
  readonly device: Device;
  private flat: Tensor | null = null;
  /** From the first gradient of an accumulation step until drop(); parameters nobody used count as zero. */
  readonly gradient: UnitGradient;
  private listener: UnitListener | null = null;
  private readonly waiting = new Set<Parameter>();
  private ready = false;
  private streaming = true;

  constructor(
    readonly name: string,
    /** The module whose forward reads these weights. */
    readonly module: Module,
    readonly parameters: readonly UnitParameter[],
    { dtype, gradDtype = dtype, device, shards = 1 }: UnitOptions,
  ) {
    this.dtype = dtype;
    this.device = device;
    const shapes = parameters.map(({ name: parameterName, parameter, group }) => ({
      name: parameterName,
      shape: parameter.shape,
      group,
      region: parameter.region,
    }));
    this.layout = layoutUnit(shapes, shards);
    const ordered = this.layout.slots.map((slot) => this.parameterOf(slot));
    this.gradient = unitGradient(
      { layout: this.layout, parameters: ordered, dtype, device },
      gradDtype,
    );
  }

  /** Of the sum of gradients. */
  get gradDtype(): DType {
    return this.gradient.dtype;
  }

  /** Flat weights in the unit's dtype. Throws DS_RELEASED while they are not here. */
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

  /** Allocates the flat weights, contents undefined but for zeros between parameters. */
  allocate(): Tensor {
    const { dtype, device, layout } = this;
    const flat = held(() => Tensor.empty([layout.numel], dtype, device));
    for (const gap of layout.gaps) zeroRange(flat, gap);
    this.flat = flat;
    return flat;
  }

  /** Makes the parameters views of flat weights that somebody else fills: `flat` is [numel], held by the unit from now. */
  materialize(flat: Tensor): void {
    this.flat = flat;
    const { buffer, dtype, offset } = flat;
    for (const slot of this.layout.slots) {
      this.parameterOf(slot).place({ buffer, dtype, offset: offset + slot.offset });
    }
  }

  /** Frees the flat weights in the order of the compute stream; the parameters have no values until materialize(). */
  vacate(): void {
    for (const { parameter } of this.parameters) parameter.vacate(this.name);
    this.flat?.release();
    this.flat = null;
  }

  parameterOf(slot: Slot): Parameter {
    return (this.parameters.find((p) => p.name === slot.name) as UnitParameter).parameter;
  }

  /**
   * Writes the parameters' values into the allocated flat weights, f32 rounded to the unit's dtype, and makes the
   * parameters views of it; `onInitial` sees each one's values first, in their shape.
   */
  adopt(onInitial: (slot: Slot, values: Tensor) => void): void {
    const { weights: flat } = this;
    for (const slot of this.layout.slots) {
      const parameter = this.parameterOf(slot);
      const initial = held(() => Tensor.empty(slot.shape, 'f32', this.device));
      parameter.writeInitial(initial);
      onInitial(slot, initial);
      const place = sliceFlat(flat, slot, slot.shape);
      kernels.copy({ in: initial, out: place });
      parameter.place(place);
      initial.release();
      place.release();
      setGradTarget(parameter, () => this.gradPlace(slot));
      claim(parameter, this);
      parameter.onGradReady = (leaf) => this.arrived(leaf as Parameter);
    }
    this.ready = true;
  }

  /** `listener` is told of every backward from now on. */
  reportTo(listener: UnitListener): void {
    this.listener = listener;
  }

  /**
   * Starts a backward: every gradient is awaited again. Unless `streaming`, the unit is not complete before finish():
   * several backwards may follow each other.
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

  /** Gives up a backward that has failed, and its gradients. */
  forget(): void {
    this.waiting.clear();
    this.ready = true;
    this.gradient.drop();
  }

  dispose(): void {
    this.gradient.drop();
    for (const { parameter } of this.parameters) {
      setGradTarget(parameter, null);
      parameter.onGradReady = null;
      disclaim(parameter, this);
    }
    this.flat?.release();
    this.flat = null;
  }

  /** Bytes of weights and of gradients while they exist. */
  get bytes(): { weights: number; gradients: number } {
    const size = this.layout.numel * dtypeSize(this.dtype);
    return { weights: this.flat ? size : 0, gradients: this.gradient.bytes };
  }

  /** Whether `part` lies in the flat weights or in the gradient. */
  holds({ buffer }: Tensor): boolean {
    return this.flat?.buffer === buffer || this.gradient.holds(buffer);
  }

  private gradPlace(slot: Slot): Tensor {
    if (this.ready) this.listener?.unexpected();
    if (this.ready) {
      throw new DsError({
        code: 'DS_AUTOGRAD',
        op: `unit ${this.name}`,
        expected: `all gradients of ${slot.name} before the unit's last one`,
        got: 'one more after it was complete',
        hint: 'A module used inside two checkpoint() calls of one forward is not supported.',
      });
    }
    return this.gradient.place(slot);
  }

  private arrived(parameter: Parameter): void {
    if (this.ready) this.listener?.unexpected();
    this.waiting.delete(parameter);
    if (this.streaming && this.waiting.size === 0 && !this.ready) this.complete();
  }

  private complete(): void {
    this.gradient.close();
    this.ready = true;
    this.listener?.completed(this);
  }
}
