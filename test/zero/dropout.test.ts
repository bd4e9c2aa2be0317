// Runs the cases of dropout over several ranks on the CPU.
import { testOnCpu } from '../support/jest-cases.js';
import { cases } from './dropout.cases.js';

testOnCpu('dropout over several ranks', cases);
