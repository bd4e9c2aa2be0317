// Runs the cases of errors that one rank meets with on the CPU.
import { testOnCpu } from '../support/jest-cases.js';
import { cases } from './errors.cases.js';

testOnCpu('errors of ranks that compute together', cases);
