// Runs the module cases on the CPU.
import { testOnCpu } from '../support/jest-cases.js';
import { cases } from './modules.cases.js';

testOnCpu('modules', cases);
