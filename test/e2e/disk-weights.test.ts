// Runs the cases of weights on disk on the CPU.
import { testOnCpu } from '../support/jest-cases.js';
import { cases } from './disk-weights.cases.js';

testOnCpu('weights on disk', cases);
