// All cases of the native op matrix, from every file of this folder.
import { type GradientCheck, gradientCases } from '../../autograd/check.js';
import type { Case } from '../../support/case.js';
import { exportsOf, testFiles } from '../../support/test-files.js';
import type { MatrixCase } from './harness.js';
import { type Mistake, mistakeCases } from './mistake.js';

/** The exports of a case file. */
interface OpFile {
  /** Cases of one op, one layout and one dtype, or of several. */
  cases?: readonly (MatrixCase | Case)[];
  /** Wrong calls and their expected errors. */
  mistakes?: readonly Mistake[];
  /** Gradient checks of the functions that use its ops. */
  checks?: readonly GradientCheck[];
}

const files = testFiles(__dirname)
  .filter((path) => !path.endsWith('index'))
  .map((path) => exportsOf<OpFile>(path));

const allOf = files.flatMap(({ cases }) => cases ?? []);

export const opCases: readonly MatrixCase[] = allOf.filter((item) => 'op' in item);
export const checks: readonly GradientCheck[] = files.flatMap((file) => file.checks ?? []);
export const cases: readonly Case[] = [
  ...allOf,
  ...mistakeCases(files.flatMap(({ mistakes }) => mistakes ?? [])),
  ...gradientCases(checks),
];
