// Runs the cases of layers with weights of 8 and 4 bits on the CPU.
import { testOnCpu } from '../support/jest-cases.js';
import { cases } from './quantized-linear.cases.js';

testOnCpu('layers of 8 and 4 bits', cases);
