// The cases of Trainers on several ranks, on the CPU.
import { testOnCpu } from '../support/jest-cases.js';
import { cases } from './ranks.cases.js';

testOnCpu('trainers on ranks', cases);
