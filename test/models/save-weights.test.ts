// Runs the cases of nn.saveWeights on the CPU.
import { testOnCpu } from '../support/jest-cases.js';
import { cases } from './save-weights.cases.js';

testOnCpu('saveWeights', cases);
