// Runs the cases of adapters on the CPU.
import { testOnCpu } from '../support/jest-cases.js';
import { cases } from './lora.cases.js';

testOnCpu('LoRA', cases);
