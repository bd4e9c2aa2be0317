// Runs the layer cases on the CPU.
import { testOnCpu } from '../support/jest-cases.js';
import { cases } from './layers.cases.js';

testOnCpu('layers', cases);
