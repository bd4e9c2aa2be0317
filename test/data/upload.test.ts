// Uploads of batches, on the CPU.
import { testOnCpu } from '../support/jest-cases.js';
import { cases } from './upload.cases.js';

testOnCpu('uploads', cases);
