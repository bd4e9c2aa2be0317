// Runs the cases of engines without an optimizer on the CPU.
import { testOnCpu } from '../support/jest-cases.js';
import { cases } from './zero-inference.cases.js';

testOnCpu('ZeRO-Inference', cases);
