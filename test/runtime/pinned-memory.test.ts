// Runs the cases of pinned memory on the CPU.
import { testOnCpu } from '../support/jest-cases.js';
import { cases } from './pinned-memory.cases.js';

testOnCpu('pinned memory', cases);
