// Tests the FP8 linear layer on the CPU.
import { testOnCpu } from '../support/jest-cases.js';
import { cases } from './fp8-linear.cases.js';

testOnCpu('FP8 linear layers', cases);
