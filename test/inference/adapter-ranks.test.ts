// Ranks that share a model with several adapters, on the CPU.
import { testOnCpu } from '../support/jest-cases.js';
import { cases } from './adapter-ranks.cases.js';

testOnCpu('adapters over ranks', cases);
