// Curriculum schedules: how difficult samples may be at each step of training.
// Source: DeepSpeed's CurriculumScheduler, whose formulas and rounding these are.
import { accuratePower } from './accurate-power.js';

/** The difficulty of a global step; the first one is 1. */
export type CurriculumSchedule = (step: number) => number;

/** Where difficulties begin and end. */
export interface DifficultyRange {
  /** At step 0, before it is rounded. */
  min: number;
  /** From the last step of the schedule on. */
  max: number;
}

export interface FixedRootOptions extends DifficultyRange {
  /** Steps from `min` to `max`. */
  totalSteps: number;
  /** Difficulties are multiples of it, rounded down; `max` alone need not be one. */
  difficultyStep: number;
  /** 1 is linear, 2 the square root: how much faster difficulties grow at the beginning. */
  rootDegree: number;
}

/** min + (max - min) (step / totalSteps)^(1 / rootDegree), rounded down, and at most `max`. */
export function fixedRoot(options: FixedRootOptions): CurriculumSchedule {
  const { min, max, totalSteps, difficultyStep, rootDegree } = options;
  return (step) => {
    const share = accuratePower(step / totalSteps, 1 / rootDegree);
    const whole = Math.floor(share * (max - min) + min);
    return Math.min(whole - (whole % difficultyStep), max);
  };
}

/** difficulties[i] until step maxSteps[i], and the last one from then on. */
export function fixedDiscrete(
  difficulties: readonly number[],
  maxSteps: readonly number[],
): CurriculumSchedule {
  return (step) => {
    const index = maxSteps.findIndex((last) => step <= last);
    return difficulties.at(index) as number;
  };
}
