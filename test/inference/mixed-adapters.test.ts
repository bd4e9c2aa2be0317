// Batches with several adapters, on the CPU.
import { testOnCpu } from '../support/jest-cases.js';
import { cases } from './mixed-adapters.cases.js';

testOnCpu('inference with several adapters', cases);
