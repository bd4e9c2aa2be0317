// Draft models on the CPU.
import { testOnCpu } from '../support/jest-cases.js';
import { cases } from './draft-model.cases.js';

testOnCpu('draft model', cases);
