// Runs the cases of whole parameters on the CPU.
import { testOnCpu } from '../support/jest-cases.js';
import { cases } from './whole-parameters.cases.js';

testOnCpu('whole parameters', cases);
