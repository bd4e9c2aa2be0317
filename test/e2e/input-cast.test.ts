// Runs the cases of cast inputs on the CPU.
import { testOnCpu } from '../support/jest-cases.js';
import { cases } from './input-cast.cases.js';

testOnCpu('inputs of forward', cases);
