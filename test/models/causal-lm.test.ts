// Runs the cases of CausalLM on the CPU.
import { testOnCpu } from '../support/jest-cases.js';
import { cases } from './causal-lm.cases.js';

testOnCpu('CausalLM', cases);
