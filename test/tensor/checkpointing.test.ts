// Runs the cases of segments and of their replays on the CPU.
import { testOnCpu } from '../support/jest-cases.js';
import { cases } from './checkpointing.cases.js';
import { cases as replays } from './replays.cases.js';

testOnCpu('checkpointed segments', cases);
testOnCpu('replays of segments', replays);
