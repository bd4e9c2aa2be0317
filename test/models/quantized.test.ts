// Runs the cases of models with weights of 8 and 4 bits on the CPU.
import { testOnCpu } from '../support/jest-cases.js';
import { cases } from './quantized.cases.js';

testOnCpu('models of 8 and 4 bits', cases);
