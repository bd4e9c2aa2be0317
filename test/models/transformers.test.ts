// Runs the comparison with transformers on the CPU.
import { testOnCpu } from '../support/jest-cases.js';
import { cases } from './transformers.cases.js';

testOnCpu('transformers', cases);
