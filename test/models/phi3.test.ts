// Runs the cases of Phi-3 on the CPU.
import { testOnCpu } from '../support/jest-cases.js';
import { cases } from './phi3.cases.js';

testOnCpu('Phi3', cases);
