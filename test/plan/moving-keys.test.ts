// Runs the cases of keys that move memory on the CPU.
import { testOnCpu } from '../support/jest-cases.js';
import { cases } from './moving-keys.cases.js';

testOnCpu('keys that move memory', cases);
