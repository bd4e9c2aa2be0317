// Runs the cases of adapters under an engine on the CPU.
import { testOnCpu } from '../support/jest-cases.js';
import { cases } from './engine.cases.js';

testOnCpu('adapters under an engine', cases);
