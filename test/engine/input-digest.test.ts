// Runs the cases of digests of batches on the CPU.
import { testOnCpu } from '../support/jest-cases.js';
import { cases } from './input-digest.cases.js';

testOnCpu('digests of batches', cases);
