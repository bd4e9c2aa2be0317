// Runs the cases of updates by both processors on the CPU.
import { testOnCpu } from '../support/jest-cases.js';
import { cases } from './gpu-share.cases.js';

testOnCpu('updates by both processors', cases);
