// Runs the out-of-memory case on the CPU.
import { testOnCpu } from '../support/jest-cases.js';
import { cases } from './out-of-memory.cases.js';

testOnCpu('out of memory', cases);
