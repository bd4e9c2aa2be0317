// Runs the cases of frozen parameters on the CPU.
import { testOnCpu } from '../support/jest-cases.js';
import { cases } from './frozen.cases.js';

testOnCpu('frozen parameters over several ranks', cases);
