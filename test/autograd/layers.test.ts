// Runs the layers gradient cases on the CPU.
import { testOnCpu } from '../support/jest-cases.js';
import { cases } from './layers.cases.js';

testOnCpu('autograd of layers', cases);
