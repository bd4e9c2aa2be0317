// Runs the processor rates cases on the CPU.
import { testOnCpu } from '../support/jest-cases.js';
import { cases } from './processor-rates.cases.js';

testOnCpu('processor rates', cases);
