// Runs the segment cases on the CPU.
import { testOnCpu } from '../support/jest-cases.js';
import { cases } from './checkpointing.cases.js';

testOnCpu('checkpointed segments', cases);
