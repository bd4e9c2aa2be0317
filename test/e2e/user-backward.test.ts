// Runs the user-backward cases on the CPU.
import { testOnCpu } from '../support/jest-cases.js';
import { cases } from './user-backward.cases.js';

testOnCpu('user backward', cases);
