// Runs the cases of the optimizers that need whole parameters on the CPU.
import { testOnCpu } from '../support/jest-cases.js';
import { cases } from './tensorwise.cases.js';

testOnCpu('optimizers of whole parameters', cases);
