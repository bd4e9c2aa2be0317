// Runs the schedule cases on the CPU.
import { testOnCpu } from '../support/jest-cases.js';
import { cases } from './schedule.cases.js';

testOnCpu('schedule', cases);
