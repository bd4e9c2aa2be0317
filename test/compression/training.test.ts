// Runs the cases of compressed training on the CPU.
import { testOnCpu } from '../support/jest-cases.js';
import { cases } from './training.cases.js';

testOnCpu('compressed training', cases);
