// Runs the cases of documents on the CPU.
import { testOnCpu } from '../support/jest-cases.js';
import { cases } from './documents.cases.js';

testOnCpu('documents', cases);
