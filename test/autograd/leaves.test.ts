// Runs the cases of leaves, roots and seeds on the CPU.
import { testOnCpu } from '../support/jest-cases.js';
import { cases } from './leaves.cases.js';

testOnCpu('leaves', cases);
