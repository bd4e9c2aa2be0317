// Runs the cases of backward hooks on the CPU.
import { testOnCpu } from '../support/jest-cases.js';
import { cases } from './backward-hooks.cases.js';

testOnCpu('backward hooks', cases);
