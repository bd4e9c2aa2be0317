// Runs the cases of ZeRO++ and MiCS on the CPU.
import { testOnCpu } from '../support/jest-cases.js';
import { cases } from './copies.cases.js';

testOnCpu('ZeRO++ and MiCS', cases);
