// Runs the cases of cut layers and models on the CPU.
import { testOnCpu } from '../support/jest-cases.js';
import { cases } from './layers.cases.js';

testOnCpu('layers that are cut', cases);
