// Trains with FP8 products on the CPU.
import { testOnCpu } from '../support/jest-cases.js';
import { cases } from './fp8.cases.js';

testOnCpu('FP8 training', cases);
