// Runs the cases of memory on the CPU.
import { testOnCpu } from '../support/jest-cases.js';
import { cases } from './memory.cases.js';

testOnCpu('memory of ZeRO stages', cases);
