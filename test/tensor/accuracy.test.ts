// The accuracy cases on the CPU.
import { testOnCpu } from '../support/jest-cases.js';
import { cases } from './accuracy.cases.js';

testOnCpu('accuracy', cases);
