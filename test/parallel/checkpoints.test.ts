// Runs the cases of checkpoints of cut layers on the CPU.
import { testOnCpu } from '../support/jest-cases.js';
import { cases } from './checkpoints.cases.js';

testOnCpu('checkpoints of cut layers', cases);
