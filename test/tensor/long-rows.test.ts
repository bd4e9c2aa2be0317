// Runs the case of long rows on the CPU.
import { testOnCpu } from '../support/jest-cases.js';
import { cases } from './long-rows.cases.js';

testOnCpu('attention over long rows', cases);
