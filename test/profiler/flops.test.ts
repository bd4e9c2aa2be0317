// The FLOPs profiler on the CPU.
import { testOnCpu } from '../support/jest-cases.js';
import { cases } from './flops.cases.js';

testOnCpu('flops profiler', cases);
