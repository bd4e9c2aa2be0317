// Faults of training over processes on the CPU.
import { testOnCpu } from '../support/jest-cases.js';
import { cases } from './training.cases.js';

testOnCpu('faults', cases);
