// Runs the cases of pipelines on the CPU.
import { testOnCpu } from '../support/jest-cases.js';
import { cases } from './pipeline.cases.js';

testOnCpu('a model in stages', cases);
