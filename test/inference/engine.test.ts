// The inference engine on the CPU.
import { testOnCpu } from '../support/jest-cases.js';
import { cases } from './engine.cases.js';

testOnCpu('engine', cases);
