// Runs the cases of data_types on the CPU.
import { testOnCpu } from '../support/jest-cases.js';
import { cases } from './data-types.cases.js';

testOnCpu('data types', cases);
