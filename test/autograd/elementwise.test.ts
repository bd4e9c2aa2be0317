// Runs the elementwise gradient cases on the CPU.
import { testOnCpu } from '../support/jest-cases.js';
import { cases } from './elementwise.cases.js';

testOnCpu('autograd of elementwise', cases);
