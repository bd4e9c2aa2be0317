// Runs the offload cases on the CPU.
import { testOnCpu } from '../support/jest-cases.js';
import { cases } from './offload.cases.js';

testOnCpu('offload', cases);
