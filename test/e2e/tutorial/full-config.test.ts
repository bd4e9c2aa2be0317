// Runs the tutorial case on the CPU.
import { testOnCpu } from '../../support/jest-cases.js';
import { cases } from './full-config.cases.js';

testOnCpu('tutorial', cases);
