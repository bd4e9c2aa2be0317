// Runs the odd cases of the native op matrix on the CPU; two processes share this slow test.
import { testOnCpu } from '../support/jest-cases.js';
import { cases } from './matrix/index.js';

testOnCpu(
  'native matrix, odd cases',
  cases.filter((_, i) => i % 2 === 1),
);
