// Runs the cases of optimizers without an engine on the CPU.
import { testOnCpu } from '../support/jest-cases.js';
import { cases } from './standalone.cases.js';

testOnCpu('optimizers without an engine', cases);
