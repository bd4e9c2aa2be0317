// Runs the cases of 1-bit optimizers on the CPU.
import { testOnCpu } from '../support/jest-cases.js';
import { cases } from './onebit.cases.js';

testOnCpu('1-bit optimizers', cases);
