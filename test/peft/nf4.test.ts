// Runs the cases of 4-bit weights on the CPU.
import { testOnCpu } from '../support/jest-cases.js';
import { cases } from './nf4.cases.js';

testOnCpu('NF4', cases);
