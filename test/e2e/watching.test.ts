// memory_breakdown and dump_state, on the CPU.
import { testOnCpu } from '../support/jest-cases.js';
import { cases } from './watching.cases.js';

testOnCpu('watching', cases);
