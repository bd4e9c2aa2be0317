// Runs the tutorial case on the CPU.
import { testOnCpu } from '../support/jest-cases.js';
import { cases } from './tutorial.cases.js';

testOnCpu('tutorial', cases);
