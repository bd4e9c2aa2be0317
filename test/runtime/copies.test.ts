// Runs the cases of copies on the CPU.
import { testOnCpu } from '../support/jest-cases.js';
import { cases } from './copies.cases.js';

testOnCpu('copies between a device and pinned memory', cases);
