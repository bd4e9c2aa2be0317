// Runs the cases of sorting, scans, scattering and draws on the CPU.
import { testOnCpu } from '../support/jest-cases.js';
import { cases } from './order.cases.js';

testOnCpu('order', cases);
