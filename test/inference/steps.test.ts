// How the engine takes its steps, on the CPU.
import { testOnCpu } from '../support/jest-cases.js';
import { cases } from './steps.cases.js';

testOnCpu('steps', cases);
