// Runs the cases of groups of one rank on the CPU.
import { testOnCpu } from '../support/jest-cases.js';
import { cases } from './solo-group.cases.js';

testOnCpu('collectives of one rank', cases);
