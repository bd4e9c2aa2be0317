// Runs the loss cases on the CPU.
import { testOnCpu } from '../support/jest-cases.js';
import { cases } from './losses.cases.js';

testOnCpu('losses', cases);
