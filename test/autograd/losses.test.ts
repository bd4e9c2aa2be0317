// Runs the losses gradient cases on the CPU.
import { testOnCpu } from '../support/jest-cases.js';
import { cases } from './losses.cases.js';

testOnCpu('autograd of losses', cases);
