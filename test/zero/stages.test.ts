// Runs the cases of several ranks on the CPU.
import { testOnCpu } from '../support/jest-cases.js';
import { cases } from './stages.cases.js';

testOnCpu('ZeRO stages over several ranks', cases);
