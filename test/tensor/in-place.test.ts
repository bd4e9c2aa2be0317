// Runs the cases of in-place forms on the CPU.
import { testOnCpu } from '../support/jest-cases.js';
import { cases } from './in-place.cases.js';

testOnCpu('in place', cases);
