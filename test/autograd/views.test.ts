// Runs the views gradient cases on the CPU.
import { testOnCpu } from '../support/jest-cases.js';
import { cases } from './views.cases.js';

testOnCpu('autograd of views', cases);
