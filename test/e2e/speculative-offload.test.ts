// Runs the speculative offload cases on the CPU.
import { testOnCpu } from '../support/jest-cases.js';
import { cases } from './speculative-offload.cases.js';

testOnCpu('speculative offload', cases);
