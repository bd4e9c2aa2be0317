// Runs the cases of state that no optimizer touches on the CPU.
import { testOnCpu } from '../support/jest-cases.js';
import { cases } from './untrained-state.cases.js';

testOnCpu('untrained state', cases);
