// Runs the cases of dropped layers and tokens on the CPU.
import { testOnCpu } from '../support/jest-cases.js';
import { cases } from './dropping.cases.js';

testOnCpu('dropped layers and tokens', cases);
