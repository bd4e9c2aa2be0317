// Runs the cases of several ranks on the CPU.
import { testOnCpu } from '../support/jest-cases.js';
import { cases } from './stages.cases.js';

jest.setTimeout(180_000);
testOnCpu('ZeRO stages over several ranks', cases);
