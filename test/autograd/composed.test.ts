// Runs the gradient cases of composed functions on the CPU.
import { testOnCpu } from '../support/jest-cases.js';
import { cases } from './composed.cases.js';

testOnCpu('autograd of composed functions', cases);
