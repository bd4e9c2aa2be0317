// Runs the cases of ranks that share out the tokens of samples on the CPU.
import { testOnCpu } from '../support/jest-cases.js';
import { cases } from './sequence.cases.js';

testOnCpu('tokens of samples over sp', cases);
