// Runs the partial offload cases on the CPU.
import { testOnCpu } from '../support/jest-cases.js';
import { cases } from './partial-offload.cases.js';

testOnCpu('partial offload', cases);
