// Runs the cases of arguments on the CPU.
import { testOnCpu } from '../support/jest-cases.js';
import { cases } from './arguments.cases.js';

testOnCpu('ops', cases);
