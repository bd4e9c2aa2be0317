// Runs the cases of parameter groups with ranks of their own on the CPU.
import { testOnCpu } from '../support/jest-cases.js';
import { cases } from './expert-groups.cases.js';

testOnCpu('parameter groups with ranks of their own', cases);
