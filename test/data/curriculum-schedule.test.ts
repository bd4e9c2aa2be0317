// Tests difficulties by step, against tables computed by hand from the formulas.
import { fixedDiscrete, fixedRoot, roundedPower } from '../../lib/data/curriculum-schedule.js';

const LINEAR = { totalSteps: 30, difficultyStep: 8, rootDegree: 1 };

/** 8 + 4 step: 12, 16, 20, 24, 36, 68, 124, 128, 132, 408. */
test.each([
  [1, 8],
  [2, 16],
  [3, 16],
  [4, 24],
  [7, 32],
  [15, 64],
  [29, 120],
  [30, 128],
  [31, 128],
  [100, 128],
])('linear from 8 to 128 in 30 steps: %i has %i', (step, difficulty) => {
  expect(fixedRoot({ min: 8, max: 128, ...LINEAR })(step)).toBe(difficulty);
});

/** 10 + 10 step: 20, 90, 100, 110. An end that is not a multiple is exceeded, or reached late. */
test.each([
  [1, 16],
  [8, 88],
  [9, 96],
  [10, 100],
  [11, 100],
])('linear from 10 to 100 in 9 steps of 8: %i has %i', (step, difficulty) => {
  expect(fixedRoot({ min: 10, max: 100, ...LINEAR, totalSteps: 9 })(step)).toBe(difficulty);
});

/** 64 + 1024 sqrt(step / 100): 166.4, 268.8, 371.2, 576, 678.4, 780.8, 985.6, 1088, 1093.1. */
test.each([
  [1, 160],
  [4, 264],
  [9, 368],
  [25, 576],
  [36, 672],
  [49, 776],
  [81, 984],
  [100, 1088],
  [101, 1088],
])('square root from 64 to 1088 in 100 steps: %i has %i', (step, difficulty) => {
  const options = { min: 64, max: 1088, totalSteps: 100, difficultyStep: 8, rootDegree: 2 };
  expect(fixedRoot(options)(step)).toBe(difficulty);
});

/**
 * 8 + 112 cbrt(step / 343), which is a multiple of 8 at each cube; a slightly smaller value gives 8
 * less.
 */
test.each([
  [1, 24],
  [8, 40],
  [27, 56],
  [64, 72],
  [125, 88],
  [216, 104],
  [343, 120],
])('cube root from 8 to 120 in 343 steps: %i has %i', (step, difficulty) => {
  const options = { min: 8, max: 120, totalSteps: 343, difficultyStep: 8, rootDegree: 3 };
  expect(fixedRoot(options)(step)).toBe(difficulty);
});

test('a schedule that starts at the maximum stays there, for any difficulty step', () => {
  const schedule = fixedRoot({ min: 12, max: 12, ...LINEAR });
  expect([0, 1, 1000].map(schedule)).toEqual([12, 12, 12]);
});

test.each([
  [1, 16],
  [5, 16],
  [6, 64],
  [10, 64],
  [11, 128],
  [1000, 128],
])('16 until 5, 64 until 10, then 128: %i has %i', (step, difficulty) => {
  expect(fixedDiscrete([16, 64, 128], [5, 10])(step)).toBe(difficulty);
});

test("powers are correctly rounded, even if the runtime's are not", () => {
  // From Python, and with 50 digits: 0.36443148688046645 and 0.09090909090909091.
  expect(roundedPower(125 / 343, 1 / 3)).toBe(5 / 7);
  expect(roundedPower(2, 0.5)).toBe(Math.SQRT2);
  expect(roundedPower(1 / 4, 0.5)).toBe(0.5);
  expect(roundedPower(1e-9, 0.5)).toBe(Math.sqrt(1e-9));
  expect(roundedPower(12.25, 0.5)).toBe(3.5);
  expect(roundedPower(0.3, 1)).toBe(0.3);
});
