// Runs the value cases on the CPU.
import { testOnCpu } from '../support/jest-cases.js';
import { cases } from './pytorch.cases.js';

testOnCpu('ops', cases);
