// Curriculum schedules: the difficulty of samples at each step of training. Formulas and rounding
// equal DeepSpeed's CurriculumScheduler.

import { argumentError, valueError } from '../runtime/input-errors.js';
import { namesOf, readOptions } from '../runtime/options.js';
import { requireFinite, requireInteger } from '../runtime/require-number.js';
import { required } from '../runtime/required.js';

/** Returns the difficulty of a global step. The first step is 1. */
export type CurriculumSchedule = (step: number) => number;

/** The first and the last difficulty of a schedule. */
export interface DifficultyRange {
  /** Difficulty at step 0, before rounding. */
  min: number;
  /** Difficulty from the last step of the schedule on. */
  max: number;
}

/** Options of fixedRoot(). */
export interface FixedRootOptions extends DifficultyRange {
  /** Number of steps from `min` to `max`. */
  totalSteps: number;
  /**
   * Difficulties are rounded down to multiples of this number. `max` need not be a multiple.
   * Default: 1.
   */
  difficultyStep?: number;
  /**
   * Degree of the root. 1 is linear; 2 is the square root, which grows faster at first. Default: 1.
   */
  rootDegree?: number;
}

/**
 * Returns the schedule min + (max - min) (step / totalSteps)^(1 / rootDegree), rounded down, at
 * most `max`. If `min` equals `max`, the difficulty is constant. Throws DS_ARGUMENT if a number is
 * not finite, `max` is less than `min`, or a number of steps is less than 1.
 */
export function fixedRoot(given: FixedRootOptions): CurriculumSchedule {
  const options = readOptions('fixedRoot', given, namesOf.FixedRootOptions);
  const { difficultyStep = 1, rootDegree = 1 } = options;
  const min = requireFinite('fixedRoot min', options.min);
  const max = requireFinite('fixedRoot max', options.max, min);
  const totalSteps = requireInteger('fixedRoot totalSteps', options.totalSteps, 1);
  requireInteger('fixedRoot difficultyStep', difficultyStep, 1);
  requireFinite('fixedRoot rootDegree', rootDegree, Number.MIN_VALUE);
  if (min === max) return () => max;
  return (step) => {
    const fraction = roundedPower(step / totalSteps, 1 / rootDegree);
    const difficulty = Math.floor(fraction * (max - min) + min);
    return Math.min(difficulty - (difficulty % difficultyStep), max);
  };
}

/**
 * Returns the schedule with difficulties[i] until step maxSteps[i], and the last difficulty
 * afterwards. Throws DS_ARGUMENT unless both lists contain numbers and `maxSteps` has one element
 * less.
 */
export function fixedDiscrete(
  difficulties: readonly number[],
  maxSteps: readonly number[],
): CurriculumSchedule {
  requireNumbers('fixedDiscrete difficulties', difficulties);
  requireNumbers('fixedDiscrete maxSteps', maxSteps);
  if (difficulties.length !== maxSteps.length + 1) {
    const expected = `${maxSteps.length + 1} difficulties, one more than maxSteps has`;
    const got = String(difficulties.length);
    throw argumentError('fixedDiscrete', expected, got);
  }
  return (step) => {
    const index = maxSteps.findIndex((last) => step <= last);
    return required(difficulties.at(index));
  };
}

function requireNumbers(op: string, list: unknown): void {
  if (!Array.isArray(list)) {
    const expected = 'a list of numbers';
    throw valueError(op, expected, list);
  }
  for (const [i, number] of list.entries()) requireFinite(`${op}[${i}]`, number);
}

/**
 * The difficulties of a schedule, computed step by step. After the first difficulty of at least
 * `max`, the difficulty is constant. Source: CurriculumScheduler.update_difficulty().
 */
export class DifficultyPath {
  private step = 0;
  private difficulty = Number.NEGATIVE_INFINITY;

  /** `op` names the schedule in errors. `max`: the difficulty after which it is constant. */
  constructor(
    private readonly op: string,
    private readonly schedule: CurriculumSchedule,
    private readonly max: number,
  ) {}

  /**
   * Returns the difficulty of a step. Calls the schedule for every step up to this one. If steps
   * rise from call to call, each step is computed once. Throws DS_ARGUMENT if the schedule returns
   * a value that is not finite, or is less than the previous value.
   */
  at(step: number): number {
    if (step < this.step) {
      this.step = 0;
      this.difficulty = Number.NEGATIVE_INFINITY;
    }
    while (this.step < step && this.difficulty < this.max) this.advance();
    return this.difficulty;
  }

  private advance(): void {
    const op = `${this.op}(${this.step + 1})`;
    const next = requireFinite(op, this.schedule(this.step + 1));
    if (next < this.difficulty) {
      const expected = `at least ${this.difficulty}, the difficulty of the previous step`;
      const hint = 'Return difficulties that do not fall from step to step.';
      throw argumentError(op, expected, String(next), hint);
    }
    this.difficulty = next;
    this.step++;
  }
}

// Powers, rounded to the nearest double as in C libraries. V8's pow is off by one bit in one of ten
// results; that can change a difficulty, because difficulties are rounded down.

/** Number of fraction bits of the fixed-point numbers. */
const FRACTION_BITS = 128n;
const ONE = 1n << FRACTION_BITS;

/** Returns base^exponent, rounded to the nearest double. Both must be positive. */
export function roundedPower(base: number, exponent: number): number {
  if (exponent === 1 || base === 1) return base;
  const approximate = base ** exponent;
  const exactLog = (toFixedPoint(exponent) * fixedPointLog(toFixedPoint(base))) >> FRACTION_BITS;
  const logError = Number(exactLog - fixedPointLog(toFixedPoint(approximate))) / Number(ONE);
  return approximate + approximate * logError;
}

/** Converts a double to fixed point. Multiples of 2^-128 are exact. */
function toFixedPoint(value: number): bigint {
  let [scaled, bits] = [value, 0n];
  while (!Number.isInteger(scaled) && bits < FRACTION_BITS) {
    scaled *= 2;
    bits++;
  }
  return BigInt(Math.trunc(scaled)) << (FRACTION_BITS - bits);
}

const LOG_2 = logBySeries(2n * ONE);

/** Returns the natural logarithm of a positive fixed-point number. */
function fixedPointLog(value: bigint): bigint {
  let [mantissa, doublings] = [value, 0n];
  while (mantissa < ONE) {
    mantissa <<= 1n;
    doublings--;
  }
  while (mantissa >= 2n * ONE) {
    mantissa >>= 1n;
    doublings++;
  }
  return logBySeries(mantissa) + doublings * LOG_2;
}

/**
 * Returns the logarithm of a fixed-point m, 1 <= m < 2, by ln m = 2 atanh((m - 1) / (m + 1)). Each
 * term of the series adds three bits.
 */
function logBySeries(mantissa: bigint): bigint {
  const ratio = ((mantissa - ONE) << FRACTION_BITS) / (mantissa + ONE);
  const square = (ratio * ratio) >> FRACTION_BITS;
  let sum = 0n;
  let power = ratio;
  for (let odd = 1n; power > 0n; odd += 2n) {
    sum += power / odd;
    power = (power * square) >> FRACTION_BITS;
  }
  return 2n * sum;
}
