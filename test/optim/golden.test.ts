// Runs the optimizers' golden cases on the CPU.
import { testOnCpu } from '../support/jest-cases.js';
import { cases } from './golden.cases.js';

testOnCpu('optimizers against recorded numbers', cases);
