// Runs the cases of ranks that were given different things on the CPU.
import { testOnCpu } from '../support/jest-cases.js';
import { cases } from './agreement.cases.js';

testOnCpu('ranks that were given different things', cases);
