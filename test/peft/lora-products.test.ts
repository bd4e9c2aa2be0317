// Runs the cases of adapters' products on the CPU.
import { testOnCpu } from '../support/jest-cases.js';
import { cases } from './lora-products.cases.js';

testOnCpu('products of LoRA', cases);
