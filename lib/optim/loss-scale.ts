// Loss scaling for fp16: keeps small gradients above the smallest fp16 number, and lowers the scale
// after overflows. Source: DeepSpeed runtime/fp16/loss_scaler.py, DynamicLossScaler. DeepSpeed uses
// it for ZeRO; here every stage uses it.
import type { JsonObject } from '../../types/json.js';
import { DsError } from '../errors.js';
import { valueError } from '../runtime/input-errors.js';
import { readWithDefaults } from '../runtime/options.js';
import { requireFinite, requireInteger } from '../runtime/require-number.js';
import { requireType } from '../runtime/require-type.js';

/**
 * Chooses the factor of the loss, so that fp16 gradients neither underflow nor overflow. The engine
 * owns it.
 */
export interface LossScaler {
  /** Factor of the loss in the next backward. */
  readonly scale: number;
  /** Whether the scale can shrink after an overflow. */
  readonly dynamic: boolean;
  /** Called once per step. `overflow`: gradients were not finite, so the step was skipped. */
  update(overflow: boolean): void;
  /** Returns the state to save in a checkpoint. */
  state(): JsonObject;
  /** Restores a result of state(). */
  load(state: JsonObject): void;
}

/** A constant factor: `fp16.loss_scale` if it is above 0, and 1 for bf16 and fp32. */
export class StaticLossScaler implements LossScaler {
  readonly dynamic = false;

  /** Throws DS_ARGUMENT unless `scale` is a finite number above 0. */
  constructor(readonly scale: number) {
    requireFinite('StaticLossScaler scale', scale, Number.MIN_VALUE);
  }

  update(_overflow: boolean): void {}

  state(): JsonObject {
    return {};
  }

  load(_state: JsonObject): void {}
}

/** When the scale is halved and doubled. */
export interface DynamicLossScalerOptions {
  /** The initial scale is 2 to this power. Default: 16. */
  initialScalePower?: number;
  /** Number of steps without overflow between two doublings. Default: 1000. */
  window?: number;
  /**
   * Number of overflows that cause a halving. With 0 or less, the scale is never halved. Default:
   * 2.
   */
  hysteresis?: number;
  /**
   * Count overflows anew after every step without overflow, instead of after each doubling.
   * Default: false.
   */
  consecutiveHysteresis?: boolean;
  /** Smallest loss scale. Default: 1. */
  minScale?: number;
}

const DEFAULTS: Required<DynamicLossScalerOptions> = {
  initialScalePower: 16,
  window: 1000,
  hysteresis: 2,
  consecutiveHysteresis: false,
  minScale: 1,
};

/**
 * Adapts the loss scale of fp16 to overflows. The scale is doubled after `window` + 1 steps in a
 * row without overflow, then after every `window` further ones. It is halved at an overflow if
 * `hysteresis` overflows have occurred. It has no upper limit.
 */
export class DynamicLossScaler implements LossScaler {
  readonly dynamic = true;
  private current: number;
  private iteration = 0;
  private lastOverflow = -1;
  private hysteresisLeft: number;
  private readonly hysteresis: number;
  private readonly window: number;
  private readonly minScale: number;
  private readonly consecutive: boolean;

  /** Throws DS_ARGUMENT for unknown or invalid options. */
  constructor(given: DynamicLossScalerOptions = {}) {
    const op = 'DynamicLossScaler';
    const options = readWithDefaults(op, given, DEFAULTS);
    const { initialScalePower, window, hysteresis, minScale, consecutiveHysteresis } = options;
    requireFinite(`${op} initialScalePower`, initialScalePower);
    requireInteger(`${op} window`, window, 1);
    requireInteger(`${op} hysteresis`, hysteresis, Number.MIN_SAFE_INTEGER);
    requireType(`${op} consecutiveHysteresis`, consecutiveHysteresis, 'boolean');
    requireFinite(`${op} minScale`, minScale, 0);
    this.current = 2 ** initialScalePower;
    this.hysteresis = hysteresis;
    this.hysteresisLeft = hysteresis;
    this.window = window;
    this.minScale = minScale;
    this.consecutive = consecutiveHysteresis;
  }

  get scale(): number {
    return this.current;
  }

  /** Throws DS_NONFINITE if gradients overflow at the minimum scale. */
  update(overflow: boolean): void {
    if (overflow) this.shrink();
    else this.grow();
    this.iteration++;
  }

  private shrink(): void {
    if (this.hysteresis !== 1 && this.hysteresisLeft !== 1) this.hysteresisLeft--;
    else if (this.current === this.minScale) throw this.exhaustedError();
    else this.current = Math.max(this.current / 2, this.minScale);
    this.lastOverflow = this.iteration;
  }

  private grow(): void {
    if (this.consecutive) this.hysteresisLeft = this.hysteresis;
    const stable = this.iteration - this.lastOverflow - 1;
    if (stable === 0 || stable % this.window !== 0) return;
    this.hysteresisLeft = this.hysteresis;
    this.current *= 2;
  }

  private exhaustedError(): DsError {
    return new DsError({
      code: 'DS_NONFINITE',
      op: 'loss scale',
      expected: `finite fp16 gradients at the minimum scale ${this.minScale}`,
      got: `infinity or NaN in global step ${this.iteration + 1}`,
      hint: 'Check data and initialisation for NaN, lower the learning rate, or train in bf16.',
    });
  }

  state(): JsonObject {
    return {
      scale: this.current,
      iteration: this.iteration,
      lastOverflow: this.lastOverflow,
      hysteresisLeft: this.hysteresisLeft,
    };
  }

  /**
   * Restores a saved state. The options of this object stay. The empty state of a run without
   * dynamic scaling (bf16, fp32, a static scale) changes nothing. Throws DS_CHECKPOINT for invalid
   * values, and DS_ARGUMENT if the state is not an object. If it throws, nothing has changed.
   */
  load(state: JsonObject): void {
    if (typeof state !== 'object' || state === null || Array.isArray(state))
      throw valueError('DynamicLossScaler.load', 'a result of state()', state);
    if (Object.keys(state).length === 0) return;
    const scale = readNumber(
      state,
      'scale',
      'a finite number above 0',
      (x) => x > 0 && x < Infinity,
    );
    const iteration = readNumber(state, 'iteration', 'a whole number from 0', isFrom(0));
    const lastOverflow = readNumber(state, 'lastOverflow', 'a whole number from -1', isFrom(-1));
    const left = readNumber(state, 'hysteresisLeft', 'a whole number', Number.isSafeInteger);
    this.current = scale;
    this.iteration = iteration;
    this.lastOverflow = lastOverflow;
    this.hysteresisLeft = left;
  }
}

const isFrom =
  (min: number) =>
  (x: number): boolean =>
    Number.isSafeInteger(x) && x >= min;

function readNumber(
  state: JsonObject,
  key: string,
  expected: string,
  isGood: (value: number) => boolean,
): number {
  const value = state[key];
  if (typeof value === 'number' && isGood(value)) return value;
  throw new DsError({
    code: 'DS_CHECKPOINT',
    op: `loss scale state "${key}"`,
    expected,
    got: JSON.stringify(value) ?? 'nothing',
    hint: 'The checkpoint is damaged: load another tag.',
  });
}
