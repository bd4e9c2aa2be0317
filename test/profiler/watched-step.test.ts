// The profiled step of an engine, on the CPU.
import { testOnCpu } from '../support/jest-cases.js';
import { cases } from './watched-step.cases.js';

testOnCpu('watched step', cases);
