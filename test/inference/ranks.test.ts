// Inference over ranks of this machine.
import { testOnCpu } from '../support/jest-cases.js';
import { cases } from './ranks.cases.js';

testOnCpu('inference over ranks', cases);
