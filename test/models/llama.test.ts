// Runs the cases of Llama on the CPU.
import { testOnCpu } from '../support/jest-cases.js';
import { cases } from './llama.cases.js';

testOnCpu('Llama', cases);
