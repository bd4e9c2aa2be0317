// Runs the cases of changed weights on the CPU.
import { testOnCpu } from '../support/jest-cases.js';
import { cases } from './changed-weights.cases.js';

testOnCpu('changed weights', cases);
