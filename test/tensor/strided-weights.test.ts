// The cases of strided weights on the CPU.
import { testOnCpu } from '../support/jest-cases.js';
import { cases } from './strided-weights.cases.js';

testOnCpu('strided weights', cases);
