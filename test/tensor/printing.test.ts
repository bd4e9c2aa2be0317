// Runs the printing cases on the CPU.
import { testOnCpu } from '../support/jest-cases.js';
import { cases } from './printing.cases.js';

testOnCpu('printing', cases);
