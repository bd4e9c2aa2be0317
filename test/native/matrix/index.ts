// All cases of the native op matrix: those of every file of this folder.
import { type GradientCheck, gradientCases } from '../../autograd/check.js';
import type { Case } from '../../support/case.js';
import { exportsOf, testFiles } from '../../support/test-files.js';
import type { MatrixCase } from './harness.js';
import { type Mistake, mistakeCases } from './mistake.js';

/** What a file may export. */
interface OpFile {
  /** One op, one layout, one dtype each; or about several. */
  cases?: readonly (MatrixCase | Case)[];
  /** Wrong calls, and the error that each must give. */
  mistakes?: readonly Mistake[];
  /** Gradients of the functions over its ops. */
  checks?: readonly GradientCheck[];
}

const files = testFiles(__dirname)
  .filter((path) => !path.endsWith('index'))
  .map((path) => exportsOf<OpFile>(path));

const allOf = files.flatMap(({ cases }) => cases ?? []);

export const opCases: readonly MatrixCase[] = allOf.filter((one) => 'op' in one);
export const checks: readonly GradientCheck[] = files.flatMap((file) => file.checks ?? []);
export const cases: readonly Case[] = [
  ...allOf,
  ...mistakeCases(files.flatMap(({ mistakes }) => mistakes ?? [])),
  ...gradientCases(checks),
];
