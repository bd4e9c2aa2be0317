// Runs the cases of resuming on several ranks on the CPU.
import { testOnCpu } from '../support/jest-cases.js';
import { cases } from './resume.cases.js';

testOnCpu('resume on several ranks', cases);
