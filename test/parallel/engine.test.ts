// Runs the cases of engines over cut layers on the CPU.
import { testOnCpu } from '../support/jest-cases.js';
import { cases } from './engine.cases.js';

testOnCpu('engines over cut layers', cases);
