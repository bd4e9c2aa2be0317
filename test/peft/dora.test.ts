// Runs the cases of DoRA on the CPU.
import { testOnCpu } from '../support/jest-cases.js';
import { cases } from './dora.cases.js';

testOnCpu('DoRA', cases);
