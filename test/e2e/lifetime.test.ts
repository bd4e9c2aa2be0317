// Runs the lifetime cases on the CPU.
import { testOnCpu } from '../support/jest-cases.js';
import { cases } from './lifetime.cases.js';

testOnCpu('lifetime', cases);
