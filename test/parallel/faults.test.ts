// Runs the model-parallel fault cases on the CPU.
import { testOnCpu } from '../support/jest-cases.js';
import { cases } from './faults.cases.js';

testOnCpu('faults over cut layers', cases);
