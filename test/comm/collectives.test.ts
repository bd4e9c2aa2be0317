// The collective cases over processes on the CPU.
import { testOnCpu } from '../support/jest-cases.js';
import { cases } from './collectives.cases.js';

testOnCpu('collectives', cases);
