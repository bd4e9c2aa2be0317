// Curriculum schedules: the maximum difficulty of samples at each step of training.
// Source of formulas and rounding: DeepSpeed's CurriculumScheduler.

import { argumentError, valueError } from '../runtime/input-errors.js';
import { type OptionNames, readOptions } from '../runtime/options.js';
import { requireFinite, requireInteger } from '../runtime/require-number.js';
import { required } from '../runtime/required.js';

/** Returns the difficulty of a global step, from step 1. */
export type CurriculumSchedule = (step: number) => number;

/** The first and the last difficulty. */
export interface DifficultyRange {
  /** At step 0, before it is rounded. */
  min: number;
  /** Difficulty from the last step of the schedule on. */
  max: number;
}

/** Options of fixedRoot(). */
export interface FixedRootOptions extends DifficultyRange {
  /** Steps from `min` to `max`. */
  totalSteps: number;
  /** Difficulties are rounded down to multiples of it; `max` need not be one. Default: 1. */
  difficultyStep?: number;
  /**
   * Degree of the root: 1 is linear, 2 the square root, which grows faster at the beginning.
   * Default: 1.
   */
  rootDegree?: number;
}

const ROOT: OptionNames<FixedRootOptions> = {
  min: true,
  max: true,
  totalSteps: true,
  difficultyStep: true,
  rootDegree: true,
};

/**
 * Returns the schedule min + (max - min) (step / totalSteps)^(1 / rootDegree), rounded down and at
 * most `max`. If `min` equals `max`, every step has `max`. Throws DS_ARGUMENT if a number is not
 * finite, `max` is below `min`, or a step count is below 1.
 */
export function fixedRoot(given: FixedRootOptions): CurriculumSchedule {
  const options = readOptions('fixedRoot', given, ROOT);
  const { difficultyStep = 1, rootDegree = 1 } = options;
  const min = requireFinite('fixedRoot min', options.min);
  const max = requireFinite('fixedRoot max', options.max, min);
  const totalSteps = requireInteger('fixedRoot totalSteps', options.totalSteps, 1);
  requireInteger('fixedRoot difficultyStep', difficultyStep, 1);
  requireFinite('fixedRoot rootDegree', rootDegree, Number.MIN_VALUE);
  if (min === max) return () => max;
  return (step) => {
    const fraction = accuratePower(step / totalSteps, 1 / rootDegree);
    const whole = Math.floor(fraction * (max - min) + min);
    return Math.min(whole - (whole % difficultyStep), max);
  };
}

/**
 * Returns a schedule with difficulties[i] until step maxSteps[i], then the last difficulty.
 * `maxSteps` has one element less than `difficulties`. Throws DS_ARGUMENT unless both lists have
 * numbers and `maxSteps` is one shorter.
 */
export function fixedDiscrete(
  difficulties: readonly number[],
  maxSteps: readonly number[],
): CurriculumSchedule {
  requireNumbers('fixedDiscrete difficulties', difficulties);
  requireNumbers('fixedDiscrete maxSteps', maxSteps);
  if (difficulties.length !== maxSteps.length + 1) {
    const expected = `${maxSteps.length + 1} difficulties, one more than there are last steps`;
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
 * The difficulties of a schedule. After the first difficulty of `max` or more, the difficulty is
 * constant. Source: CurriculumScheduler.update_difficulty().
 */
export class DifficultyPath {
  private step = 0;
  private difficulty = Number.NEGATIVE_INFINITY;

  /** `op` is the owner of the schedule, for errors. */
  constructor(
    private readonly op: string,
    private readonly schedule: CurriculumSchedule,
    private readonly max: number,
  ) {}

  /**
   * Calls the schedule for every step up to this one; rising steps call it once each. Throws
   * DS_ARGUMENT for a value that is not a number or is below the previous one.
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
      const expected = `at least ${this.difficulty}, the difficulty of the step before`;
      const hint = 'Return difficulties that do not fall from step to step.';
      throw argumentError(op, expected, String(next), hint);
    }
    this.difficulty = next;
    this.step++;
  }
}

// Powers rounded to the nearest double, as in C libraries. V8's pow is off by one bit in one of ten
// results, which changes a difficulty that is rounded down.

/** Fraction bits of the fixed-point numbers below. */
const FRACTION_BITS = 128n;
const ONE = 1n << FRACTION_BITS;

/** base^exponent for a positive base and exponent: the nearest double. */
export function accuratePower(base: number, exponent: number): number {
  if (exponent === 1 || base === 1) return base;
  const approximate = base ** exponent;
  const wanted = (toFixedPoint(exponent) * logarithm(toFixedPoint(base))) >> FRACTION_BITS;
  const off = Number(wanted - logarithm(toFixedPoint(approximate))) / Number(ONE);
  return approximate + approximate * off;
}

/** Exact for multiples of 2^-128. */
function toFixedPoint(value: number): bigint {
  let [scaled, bits] = [value, 0n];
  while (!Number.isInteger(scaled) && bits < FRACTION_BITS) {
    scaled *= 2;
    bits++;
  }
  return BigInt(Math.trunc(scaled)) << (FRACTION_BITS - bits);
}

const LOG_2 = seriesOf(2n * ONE);

/** The natural logarithm of a positive fixed-point number. */
function logarithm(value: bigint): bigint {
  let [mantissa, doublings] = [value, 0n];
  while (mantissa < ONE) {
    mantissa <<= 1n;
    doublings--;
  }
  while (mantissa >= 2n * ONE) {
    mantissa >>= 1n;
    doublings++;
  }
  return seriesOf(mantissa) + doublings * LOG_2;
}

/** The logarithm of m in [1, 2): ln m = 2 atanh((m - 1) / (m + 1)) gains three bits a term. */
function seriesOf(mantissa: bigint): bigint {
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
