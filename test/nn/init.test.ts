// Runs the initialisation cases on the CPU.
import { testOnCpu } from '../support/jest-cases.js';
import { cases } from './init.cases.js';

testOnCpu('initial values', cases);
