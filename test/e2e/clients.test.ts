// Runs the client cases on the CPU.
import { testOnCpu } from '../support/jest-cases.js';
import { cases } from './clients.cases.js';

testOnCpu('clients', cases);
