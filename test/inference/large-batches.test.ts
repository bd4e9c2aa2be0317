// Steps of more than 256 sequences on the CPU.
import { testOnCpu } from '../support/jest-cases.js';
import { cases } from './large-batches.cases.js';

testOnCpu('large batches', cases);
