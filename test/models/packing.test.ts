// Runs the cases of documents in a row on the CPU.
import { testOnCpu } from '../support/jest-cases.js';
import { cases } from './packing.cases.js';

testOnCpu('packing', cases);
