// Runs the failed-initialize cases on the CPU.
import { testOnCpu } from '../support/jest-cases.js';
import { cases } from './failed-initialize.cases.js';

testOnCpu('a failed initialize()', cases);
