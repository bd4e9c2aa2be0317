// Runs the cases of whole parameters on the CPU.
import { testOnCpu } from '../support/jest-cases.js';
import { cases } from './whole-parameters.cases.js';

jest.setTimeout(120_000);
testOnCpu('whole parameters', cases);
