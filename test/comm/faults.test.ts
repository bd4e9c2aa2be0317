// The fault cases over processes on the CPU.
import { testOnCpu } from '../support/jest-cases.js';
import { cases } from './faults.cases.js';

testOnCpu('faults', cases);
