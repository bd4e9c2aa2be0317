// Runs the cases of evaluations on the CPU.
import { testOnCpu } from '../support/jest-cases.js';
import { cases } from './evaluation.cases.js';

testOnCpu('evaluation', cases);
