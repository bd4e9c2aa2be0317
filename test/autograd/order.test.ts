// Runs the gradient cases of sorted, scanned and scattered elements on the CPU.
import { testOnCpu } from '../support/jest-cases.js';
import { cases } from './order.cases.js';

testOnCpu('autograd of order', cases);
