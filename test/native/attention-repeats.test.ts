// Runs the repeated attentions under jest, where they are skipped: they test a GPU's kernels.
import { testOnCpu } from '../support/jest-cases.js';
import { cases } from './attention-repeats.cases.js';

testOnCpu('repeated attentions', cases);
