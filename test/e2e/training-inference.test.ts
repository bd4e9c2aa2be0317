// Runs the cases of inference on a model in training on the CPU.
import { testOnCpu } from '../support/jest-cases.js';
import { cases } from './training-inference.cases.js';

testOnCpu('inference on a model in training', cases);
