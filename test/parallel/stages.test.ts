// Runs the cases of pipelines over cut layers on the CPU.
import { testOnCpu } from '../support/jest-cases.js';
import { cases } from './stages.cases.js';

testOnCpu('pipelines over cut layers', cases);
