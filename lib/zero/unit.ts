// A trained unit: flat weights, and a flat gradient buffer that backward fills.
import { DsError } from '../errors.js';
import type { Module } from '../nn/module.js';
import type { Parameter } from '../nn/parameter.js';
import type { DType } from '../runtime/dtype.js';
import { setGradTarget, type Tensor } from '../tensor/index.js';
import type { LayoutEntry, Range } from './layout.js';
import { type UnitGradient, unitGradient } from './unit-gradient.js';
import {
  type InitialValues,
  type UnitParameter,
  WeightUnit,
  type WeightUnitOptions,
} from './weight-unit.js';

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
