// The native op matrix on the CPU.
import { opNames } from '../../lib/runtime/kernels.generated.js';
import { testOnCpu } from '../support/jest-cases.js';
import { cases, opCases } from './matrix/index.js';

test.each(opNames)('%s has cases', (op) => {
  expect(opCases.filter((matrixCase) => matrixCase.op === op).length).toBeGreaterThan(0);
});

testOnCpu('native matrix', cases);
