// Runs the cases of optimizer state on disk on the CPU.
import { testOnCpu } from '../support/jest-cases.js';
import { cases } from './nvme.cases.js';

testOnCpu('optimizer state on disk', cases);
