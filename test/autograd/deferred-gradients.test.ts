// Runs the cases of gradients that wait on the CPU.
import { testOnCpu } from '../support/jest-cases.js';
import { cases } from './deferred-gradients.cases.js';

testOnCpu('gradients that wait', cases);
