// Runs the comparison of encoders and heads with transformers on the CPU.
import { testOnCpu } from '../support/jest-cases.js';
import { cases } from './heads.cases.js';

testOnCpu('heads', cases);
