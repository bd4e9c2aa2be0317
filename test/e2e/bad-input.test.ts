// Runs the bad input cases on the CPU.
import { testOnCpu } from '../support/jest-cases.js';
import { cases } from './bad-input.cases.js';

testOnCpu('bad input', cases);
