// Runs the frozen-parameter cases on the CPU.
import { testOnCpu } from '../support/jest-cases.js';
import { cases } from './frozen.cases.js';

testOnCpu('frozen parameters', cases);
