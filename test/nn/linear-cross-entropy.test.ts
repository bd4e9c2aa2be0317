// Runs the cases of the head and its loss on the CPU.
import { testOnCpu } from '../support/jest-cases.js';
import { cases } from './linear-cross-entropy.cases.js';

testOnCpu('linear cross-entropy', cases);
