// The weights of a unit: parameters as views into one flat buffer. A frozen unit has only these.

import { DsError } from '../errors.js';
import type { Module } from '../nn/module.js';
import type { Parameter } from '../nn/parameter.js';
import type { Device } from '../runtime/device.js';
import { type DType, dtypeSize, isFloating } from '../runtime/dtype.js';
import * as kernels from '../runtime/kernels.generated.js';
import { required } from '../runtime/required.js';
import { sliceFlat, zeroRange } from '../tensor/flat.js';
import { claim, disclaim, held, Tensor } from '../tensor/index.js';
import { noteChanged } from '../tensor/tape.js';
import {
  type LayoutEntry,
  type LayoutOptions,
  layoutUnit,
  overlap,
  type Range,
  type UnitLayout,
} from './layout.js';

export interface UnitParameter {
  name: string;
  parameter: Parameter;
  /** Index of its optimizer group; FROZEN without one. */
  group: number;
}

/** The group of parameters without an optimizer. */
export const FROZEN = -1;

export interface WeightUnitOptions {
  /** Of the weights. */
  dtype: DType;
  device: Device;
  /** Layout of the parameters in the flat buffers. */
  layout?: LayoutOptions;
}

/** The initial values of a parameter, as far as this rank needs them. */
export interface InitialValues {
  entry: LayoutEntry;
  /** On the device; f32 if floating. For stored values: the part of this rank, flat. */
  values: Tensor;
  /** Their first element, from the parameter's start. */
  from: number;
  /** Whether they come from a file, which every rank reads itself; else they come from one rank. */
  isStored: boolean;
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
   * Writes the parameters' values into the allocated flat weights, rounded from f32 to the unit's
   * dtype if floating, and makes the parameters views of it. `onInitial` receives each value first.
   * From files, only the values in `kept` are read; the rest of the flat weights is undefined.
   * Later writes to the parameters by other code would be lost, so they throw.
   */
  adopt(kept: Range, onInitial: (initial: InitialValues) => void): void {
    for (const entry of this.layout.entries) {
      const parameter = this.parameterOf(entry);
      const isStored = parameter.stored !== null;
      const { offset, numel } = isStored ? overlap(entry, kept) : entry;
      if (numel > 0) this.write(entry, { offset, numel }, isStored, onInitial);
      const slice = sliceFlat(this.weights, entry, entry.shape);
      parameter.place(slice);
      slice.release();
      claim(parameter, this);
    }
  }

  /** Writes `range` of the flat weights: all or some elements of `entry`. */
  private write(
    entry: LayoutEntry,
    range: Range,
    isStored: boolean,
    onInitial: (initial: InitialValues) => void,
  ): void {
    const shape = range.numel === entry.numel ? entry.shape : [range.numel];
    const dtype = isFloating(this.dtype) ? 'f32' : this.dtype;
    const values = held(() => Tensor.empty(shape, dtype, this.device));
    const from = range.offset - entry.offset;
    this.parameterOf(entry).writeInitial(values, from);
    onInitial({ entry, values, from, isStored });
    const slice = sliceFlat(this.weights, range, shape);
    kernels.copy({ in: values, out: slice });
    values.release();
    slice.release();
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
