// Watching a run, on the CPU.
import { testOnCpu } from '../support/jest-cases.js';
import { cases } from './monitoring.cases.js';

testOnCpu('monitoring', cases);
