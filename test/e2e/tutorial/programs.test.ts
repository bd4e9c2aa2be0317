// Runs the tutorials' programs on the CPU.
import { testOnCpu } from '../../support/jest-cases.js';
import { cases } from './programs.cases.js';

testOnCpu('tutorials', cases);
