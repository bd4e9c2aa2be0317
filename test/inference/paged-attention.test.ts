// Runs the cases of paged attention to whole prompts on the CPU.
import { testOnCpu } from '../support/jest-cases.js';
import { cases } from './paged-attention.cases.js';

testOnCpu('paged attention of prompts', cases);
