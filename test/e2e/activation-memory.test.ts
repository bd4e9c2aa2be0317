// Runs the activation memory cases on the CPU.
import { testOnCpu } from '../support/jest-cases.js';
import { cases } from './activation-memory.cases.js';

testOnCpu('activation memory', cases);
