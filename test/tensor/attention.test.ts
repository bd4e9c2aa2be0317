// Runs the cases of masks of attention on the CPU.
import { testOnCpu } from '../support/jest-cases.js';
import { cases } from './attention.cases.js';

testOnCpu('attention', cases);
