// Runs the resume cases on the CPU.
import { testOnCpu } from '../support/jest-cases.js';
import { cases } from './resume.cases.js';

testOnCpu('resume', cases);
