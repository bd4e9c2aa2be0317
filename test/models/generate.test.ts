// Runs the cases of sampling on the CPU.
import { testOnCpu } from '../support/jest-cases.js';
import { cases } from './generate.cases.js';

testOnCpu('sampling', cases);
