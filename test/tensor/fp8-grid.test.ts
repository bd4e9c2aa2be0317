// Compares codes of FP8 with PyTorch's on the CPU.
import { testOnCpu } from '../support/jest-cases.js';
import { cases } from './fp8-grid.cases.js';

testOnCpu('codes of FP8', cases);
