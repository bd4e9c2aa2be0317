// Runs the cases of sparse attention on the CPU.
import { testOnCpu } from '../support/jest-cases.js';
import { cases } from './sparse-attention.cases.js';

testOnCpu('sparse attention', cases);
