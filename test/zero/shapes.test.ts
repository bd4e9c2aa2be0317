// Runs the cases of shapes on the CPU.
import { testOnCpu } from '../support/jest-cases.js';
import { cases } from './shapes.cases.js';

testOnCpu('ZeRO over models of every shape', cases);
