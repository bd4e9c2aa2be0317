// Runs the GPT-2 parity cases on the CPU.
import { testOnCpu } from '../support/jest-cases.js';
import { cases } from './gpt2.cases.js';

testOnCpu('parity', cases);
