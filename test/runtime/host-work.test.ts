// Runs the cases of host work on the CPU.
import { testOnCpu } from '../support/jest-cases.js';
import { cases } from './host-work.cases.js';

testOnCpu('host work in the order of a stream', cases);
