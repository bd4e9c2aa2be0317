// All cases of the native op matrix.
import type { Case } from '../../support/case.js';
import { cases as creation } from './creation.js';
import type { MatrixCase } from './harness.js';

/** One op, one layout, one dtype each. */
export const opCases: readonly MatrixCase[] = [...creation];

export const cases: readonly Case[] = [...opCases];
